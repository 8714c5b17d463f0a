-- Writes `record` under `revision`, with `own_nonce` and `own_token`. Trims the log if it exceeds its limits.
do
  local name = pack('>I8', revision)
  local head = pack(RECORD, own_nonce, now, record.size, record.count) .. own_token
  if record.count > 0 then
    call('HSET', LOG, 'n' .. name, head, 'b' .. name, table.concat(record))
  else
    call('HSET', LOG, 'n' .. name, head)
  end
  nonce, clock, log_bytes = own_nonce, now, log_bytes + record.size
  local is_over = revision - floor > LOG_REVISIONS + LOG_SLACK or (log_bytes > LOG_BYTES and revision - floor > 1)
  while is_over do
    local names, cut, tokens = {}, {}, {}
    for n = floor + 1, math.min(floor + LOG_SLACK, revision - 1) do names[#names + 1] = 'n' .. pack('>I8', n) end
    for n, old_head in ipairs(call('HMGET', LOG, unpack(names))) do
      if not is_over then break end
      cut[#cut + 1], cut[#cut + 2] = names[n], 'b' .. sub(names[n], 2)
      floor = floor + 1
      if old_head then
        local old_nonce, _, size = unpack_struct(RECORD, old_head)
        floor_nonce = old_nonce
        if #old_head > RECORD_BYTES then tokens[#tokens + 1] = 't' .. sub(old_head, RECORD_BYTES + 1) end
        log_bytes = log_bytes - size
      end
      is_over = revision - floor > LOG_REVISIONS or (log_bytes > LOG_BYTES and revision - floor > 1)
    end
    call('HDEL', LOG, unpack(cut))
    if #tokens > 0 then call('HDEL', ENTRIES, unpack(tokens)) end
  end
end

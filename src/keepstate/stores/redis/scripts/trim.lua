-- Removes the log of a space but the last revisions, at most 4,096 records at once. Takes no revision.
--
-- ARGV: mark, number of revisions that stay. Replies: trimmed REVISION NONCE, whether some are left · lost · format NUMBER · moving

local mark, keep, stored = ARGV[1], tonumber(ARGV[2]), call('HGET', ENTRIES, 'm')
--> state
local is_left = 0
if revision - floor > keep then
  --> settled
  local upto, names = math.min(revision - keep, floor + 4096), {}
  for n = floor + 1, upto do names[#names + 1] = pack('>I8', n) end
  for _, name in ipairs(names) do
    local head = call('HGET', LOG, 'n' .. name)
    if head then
      local old_nonce, _, size = unpack_struct(RECORD, head)
      floor_nonce, log_bytes = old_nonce, log_bytes - size
      if #head > RECORD_BYTES then call('HDEL', ENTRIES, 't' .. sub(head, RECORD_BYTES + 1)) end
    end
    call('HDEL', LOG, 'n' .. name, 'b' .. name)
  end
  floor = upto
  is_left = revision - floor > keep and 1 or 0
  --> save
end
return {'trimmed', revision, nonce, is_left}

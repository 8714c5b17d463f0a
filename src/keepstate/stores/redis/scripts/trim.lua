-- Removes the log of a space up to the revision before the last one, at most 4,096 records at once. Takes no revision.
--
-- ARGV: mark. Replies: trimmed REVISION NONCE, whether some are left · lost · format NUMBER · moving

local mark, stored = ARGV[1], call('HGET', ENTRIES, 'm')
--> state
local is_left = 0
if revision - floor > 1 then
  --> settled
  local upto, names = math.min(revision - 1, floor + 4096), {}
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
  is_left = revision - floor > 1 and 1 or 0
  --> save
end
return {'trimmed', revision, nonce, is_left}

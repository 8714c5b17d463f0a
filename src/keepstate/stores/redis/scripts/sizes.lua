-- Reads the sizes of a space's parts, without what has expired and is not swept yet.
--
-- ARGV: mark. Replies: sizes STATE NOW, then entries, bytes, size of the name and name of each part · lost · format NUMBER · ruins

local mark, found = ARGV[1], call('HMGET', ENTRIES, 'm', 's')
local stored, stored_sizes = found[1], found[2] or ''
--> state
--> now
--> sizes
if due ~= 0 and due <= now then
  local keys = call('ZRANGEBYSCORE', EXPIRY, '-inf', now)
  for _, key in ipairs(keys) do
    local head = call('HGET', ENTRIES, 'h' .. key)
    if not head then return {'ruins'} end
    local _, _, _, bytes = unpack_struct(HEAD, head)
    count(key, -1, -#key - bytes)
  end
end
return {'sizes', stored, now, encoded_sizes()}

-- Reads whole revisions of the log.
--
-- ARGV: mark, revision to read after, limit. Replies: changes STATE UPTO, the nonces of that revision and of UPTO, then revision,
-- nonce and changes of each record that has changes · lost · format NUMBER · ruins. STATE has the floor of the log.

local mark, stored = ARGV[1], call('HGET', ENTRIES, 'm')
--> state
local after, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
if after < floor or after > revision then return {'changes', stored, after} end
local function nonce_of(n)
  if n == floor then return floor_nonce end
  if n == revision then return nonce end
  return sub(call('HGET', LOG, 'n' .. pack('>I8', n)) or '', 1, 8)
end
local count, size, upto, full, told = 0, 0, after, {}, {}
local first_nonce = nonce_of(after)
local last_nonce = first_nonce
while upto < revision and count < limit and size < PAGE_BYTES do
  local names = {}
  for n = upto + 1, math.min(upto + math.min(limit, 256), revision) do names[#names + 1] = 'n' .. pack('>I8', n) end
  for _, head in ipairs(call('HMGET', LOG, unpack(names))) do
    if not head then return {'ruins'} end
    local own_nonce, _, bytes, changes = unpack_struct(RECORD, head)
    upto, count, size, last_nonce = upto + 1, count + changes, size + bytes, own_nonce
    if changes > 0 then full[#full + 1], told[#told + 1] = upto, own_nonce end
    if count >= limit or size >= PAGE_BYTES then break end
  end
end
local reply = {'changes', stored, upto, first_nonce, last_nonce}
for at, n in ipairs(full) do
  local i = #reply
  reply[i + 1], reply[i + 2], reply[i + 3] = n, told[at], call('HGET', LOG, 'b' .. pack('>I8', n))
end
return reply

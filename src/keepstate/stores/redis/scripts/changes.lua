-- Reads whole revisions of the log.
--
-- ARGV: mark, revision after which, limit. Replies: changes STATE UPTO, then revision and changes of each record that
-- has any · lost · format NUMBER · ruins. STATE says whether that revision can be asked for.

local mark, stored = ARGV[1], call('HGET', ENTRIES, 'm')
--> state
local after, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
if after < floor or after > revision then return {'changes', stored, after} end
local count, size, upto, full = 0, 0, after, {}
while upto < revision and count < limit and size < PAGE_BYTES do
  local names = {}
  for n = upto + 1, math.min(upto + math.min(limit, 256), revision) do names[#names + 1] = 'n' .. pack('>I8', n) end
  for _, head in ipairs(call('HMGET', LOG, unpack(names))) do
    if not head then return {'ruins'} end
    local _, _, bytes, changes = unpack_struct(RECORD, head)
    upto, count, size = upto + 1, count + changes, size + bytes
    if changes > 0 then full[#full + 1] = upto end
    if count >= limit or size >= PAGE_BYTES then break end
  end
end
local reply = {'changes', stored, upto}
for _, n in ipairs(full) do
  local i = #reply
  reply[i + 1], reply[i + 2] = n, call('HGET', LOG, 'b' .. pack('>I8', n))
end
return reply

-- Reads entries and the space's state. Used when the values may be too large for one answer.
--
-- ARGV: mark, the time for judging expiry or nothing, then the keys. Replies: read STATE NOW, then head and value of each · large SIZE · lost · format NUMBER

local mark, asked = ARGV[1], {'m'}
for i = 3, #ARGV do asked[i - 1] = 'h' .. ARGV[i] end
local heads = call('HMGET', ENTRIES, unpack(asked))
local stored = heads[1]
--> state
--> now
local live, size, judged = {}, 0, tonumber(ARGV[2]) or now
for i = 2, #asked do
  if heads[i] then
    local _, _, expires, bytes = unpack_struct(HEAD, heads[i])
    if expires == 0 or expires > judged then
      size, live[#live + 1] = size + bytes, ARGV[i + 1]
    else
      heads[i] = false
    end
  end
end
if size > READ_BYTES then return {'large', size} end
local values = #live > 0 and call('HMGET', ENTRIES, unpack(live)) or {}
local reply, n = {'read', stored, now}, 0
for i = 2, #asked do
  if heads[i] then n = n + 1 end
  reply[2 * i], reply[2 * i + 1] = heads[i], heads[i] and values[n]
end
return reply

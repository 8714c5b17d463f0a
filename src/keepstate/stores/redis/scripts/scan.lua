-- Reads one page of a scan.
--
-- ARGV: mark, range's start and end for ZRANGEBYLEX in scan direction, limit, 'forward' or 'reverse', the time for judging
-- expiry or nothing. Replies: page STATE NEXT NOW, then key, head and value of each · lost · format NUMBER · ruins

local mark, stored = ARGV[1], call('HGET', ENTRIES, 'm')
--> state
--> now
local judged = tonumber(ARGV[6]) or now
local limit, command = tonumber(ARGV[4]), ARGV[5] == 'reverse' and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX'
local start, looked, size, last, is_ended = ARGV[2], 0, 0, false, false
local keys, heads = {}, {}
repeat
  -- One key more than fits shows whether there is another page.
  local wanted = math.min(limit - #keys, PAGE_ROWS - looked) + 1
  local rows = call(command, INDEX, start, ARGV[3], 'LIMIT', 0, wanted)
  local asked = {}
  for n, key in ipairs(rows) do asked[n] = 'h' .. key end
  local met = #rows > 0 and call('HMGET', ENTRIES, unpack(asked)) or {}
  for n, key in ipairs(rows) do
    if #keys == limit or looked == PAGE_ROWS then is_ended = true break end
    if not met[n] then return {'ruins'} end
    local _, _, expires, bytes = unpack_struct(HEAD, met[n])
    if expires == 0 or expires > judged then
      size = size + bytes
      if size > PAGE_BYTES and #keys > 0 then is_ended = true break end
      keys[#keys + 1], heads[#heads + 1] = key, met[n]
    end
    looked, last = looked + 1, key
  end
  if not is_ended and #rows < wanted then is_ended, last = true, false end
  if last then start = '(' .. last end
until is_ended
local reply = {'page', stored, last, now}
local values = #keys > 0 and call('HMGET', ENTRIES, unpack(keys)) or {}
for n, key in ipairs(keys) do
  local i = #reply
  reply[i + 1], reply[i + 2], reply[i + 3] = key, heads[n], values[n]
end
return reply

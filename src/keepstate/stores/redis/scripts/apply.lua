-- Checks one batch and applies it.
--
-- ARGV: conditions, mark, token, nonces, then KEY and condition for each check, then kind, KEY and value for each write.
-- Replies: applied REVISION NOW [the mark, if it is not that of the batch] · conflict KEY ACTUAL (no key: `at`) ·
-- unknown · stamped · large - SIZE · clock NOW · lost · format NUMBER · ruins · moving

local AT, RETRY, SWEEPS, CLUSTER = 1, 2, 4, 8
local VERSION, DELETE, STAMPED = 118, 100, 115 -- v, d, s
local flags, at, alive_until, client, retry_of, check_count, write_count = unpack_struct('>BI8I8I8I8I2I2', ARGV[1])
local mark, token = ARGV[2], ARGV[3]
local first = 5 + 2 * check_count
local is_retry, sweeps = flags % SWEEPS >= RETRY, flags % CLUSTER >= SWEEPS

local asked, stamps = {'m', 't' .. token}, false
for i = 5, first - 1, 2 do asked[#asked + 1] = 'h' .. ARGV[i] end
for i = first, first + 3 * write_count - 1, 3 do
  stamps = stamps or byte(ARGV[i]) == STAMPED
  asked[#asked + 1] = 'h' .. ARGV[i + 1]
end
asked[#asked + 1] = 's'
local found = call('HMGET', ENTRIES, unpack(asked))
local stored = found[1]
if flags >= CLUSTER then
  --> settled
end
--> state
--> now
--> leap

-- ---- a token with an answer gets the same answer again

if found[2] then
  local _, applied_at = unpack_struct(RECORD, call('HGET', LOG, 'n' .. found[2]))
  return {'applied', unpack_struct('>I8', found[2]), applied_at, revision, nonce}
end
local answer = retries > now and call('HGET', RETRIES, token)
if answer then
  local till, number, kind = unpack_struct('>I8I8s', answer)
  local rest = sub(answer, 18 + #kind)
  if till > now and kind == 'applied' then return {kind, number, tonumber(rest), revision, nonce} end
  if till > now then return {kind, rest, number} end
end

-- ---- checks

local kind, rest, number = nil, '', 0
if is_retry and retry_of < floor then
  kind = 'unknown'
elseif flags % RETRY == AT and (at ~= revision or alive_until ~= 0 and alive_until <= now) then
  kind, number = 'conflict', revision
end
for i = 1, kind and 0 or check_count do
  local condition, actual = ARGV[4 + 2 * i], 0
  if found[2 + i] then
    local version, created, expires = unpack_struct(HEAD, found[2 + i])
    if expires == 0 or expires > now then actual = byte(condition) == VERSION and version or created end
  end
  if pack('>I8', actual) ~= sub(condition, 2) then
    kind, rest, number = 'conflict', ARGV[3 + 2 * i], actual
    break
  end
end

local own, stamped, stamped_heads = revision + 1, nil, nil
if stamps and not kind then
  local met = {}
  stamped, stamped_heads = {}, {}
  for n = 1, write_count do
    local key = ARGV[first + 3 * n - 2]
    if byte(ARGV[first + 3 * n - 3]) == STAMPED then
      key = key .. pack('>BI8I2', STAMP_TAG, own, n - 1)
      stamped[n], stamped_heads[n] = key, call('HGET', ENTRIES, 'h' .. key)
    end
    if met[key] then kind = 'stamped' end
    met[key] = true
  end
end
if write_count > LOG_BYTES / VALUE_BYTES and not kind then
  for n = 1, write_count do
    local head = found[2 + check_count + n]
    if stamped and stamped[n] then head = stamped_heads[n] end
    if head and byte(ARGV[first + 3 * n - 2]) == WITH_VALUES then
      local _, _, _, size = unpack_struct(HEAD, head)
      number = number + size
    end
  end
  if number > LOG_BYTES then kind = 'large' end
end

if kind then
  if is_retry then
    --> keep
    --> save
  end
  return {kind, rest, number}
end
if write_count == 0 then return {'applied', revision, now, revision, nonce} end
if not stored and call('EXISTS', LOG) + call('EXISTS', INDEX) + call('EXISTS', EXPIRY) > 0 then return {'ruins'} end

-- ---- writes

--> change
local stored_sizes = found[#asked] or ''
--> sizes

local puts, news, expiring, lasting, gone = {'m', '', 't' .. token, pack('>I8', own)}, nil, nil, nil, nil
local record = {count = 0, size = CHANGE_BYTES}
for n = 1, write_count do
  local i = first + 3 * n - 3
  local key, head = stamped and stamped[n] or ARGV[i + 1], found[2 + check_count + n]
  if stamped and stamped[n] then head = stamped_heads[n] end
  local expires, created, old, is_expired, was_bytes = 0, own, nil, false, 0
  if head then
    local _, was_created, was_till, bytes = unpack_struct(HEAD, head)
    expires, was_bytes = was_till, bytes
    if expires == 0 or expires > now then created = was_created else is_expired = true end
  end
  if byte(ARGV[i]) == DELETE then
    if head then
      gone = gone or {}
      gone[#gone + 1] = key
      count(key, -1, -#key - was_bytes)
    end
  else
    local value, ttl = ARGV[i + 2], tonumber(sub(ARGV[i], 2))
    local till, m = ttl and now + ttl or 0, #puts
    -- The log also gets the value of an expired entry, because this write removes it.
    if head and byte(key) == WITH_VALUES then old = call('HGET', ENTRIES, key) end
    puts[m + 1], puts[m + 2], puts[m + 3] = key, value, 'h' .. key
    puts[m + 4] = pack(HEAD, own, created, till, #value)
    if not head then
      news = news or {}
      news[#news + 1], news[#news + 2] = 0, key
    end
    count(key, head and 0 or 1, #value - was_bytes + (head and 0 or #key))
    if ttl then
      expiring = expiring or {}
      expiring[#expiring + 1], expiring[#expiring + 2] = till, key
      if due == 0 or till < due then due = till end
      expires = 0
    end
    change(record, key, old, value, false, is_expired)
  end
  if expires ~= 0 then
    lasting = lasting or {}
    lasting[#lasting + 1] = key
  end
end
local gone_fields = {}
for n, key in ipairs(gone or {}) do
  change(record, key, byte(key) == WITH_VALUES and call('HGET', ENTRIES, key) or nil, nil, true)
  gone_fields[2 * n - 1], gone_fields[2 * n] = key, 'h' .. key
end

-- A full server rejects a script whose first write takes memory. So a batch that only deletes starts with a delete.
if gone and #puts == 4 then call('ZREM', INDEX, unpack(gone)) end
local own_nonce, own_token = sub(ARGV[4], 1, 8), token
revision = own
--> log
if gone then
  call('HDEL', ENTRIES, unpack(gone_fields))
  call('ZREM', INDEX, unpack(gone))
end
if news then call('ZADD', INDEX, unpack(news)) end
if lasting then call('ZREM', EXPIRY, unpack(lasting)) end
if expiring then call('ZADD', EXPIRY, unpack(expiring)) end
if is_retry then
  kind, rest, number = 'applied', string.format('%.0f', now), own
  --> keep
end
puts[#puts + 1], puts[#puts + 2] = 's', encoded_sizes()
puts[2] = pack(STATE, FORMAT, revision, nonce, floor, clock, due, retries, log_bytes, floor_nonce,
  leap_revision, leap_from, leap_to)
call('HSET', ENTRIES, unpack(puts))
if sweeps and due ~= 0 and due <= now then
  local limit = SWEPT_BY_FLUSH
  own_nonce = sub(ARGV[4], 9)
  --> sweep
  --> save
end
--> hint
if revision == own then return {'applied', own, now} end
return {'applied', own, now, revision, nonce}

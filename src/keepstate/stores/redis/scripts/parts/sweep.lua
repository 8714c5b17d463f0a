-- Removes at most `limit` expired entries, and at most the bytes of a batch, as a separate revision with `own_nonce`.
-- `swept` is their number. The first write takes no memory, so it works on a full server.
local swept = 0
do
  local keys = call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, limit)
  local fields, record, size, own_token = {}, {count = 0, size = CHANGE_BYTES}, 0, ''
  for n, key in ipairs(keys) do
    local bytes = call('HSTRLEN', ENTRIES, key)
    size = size + bytes
    if size > BATCH_BYTES and n > 1 then break end
    fields[#fields + 1], fields[#fields + 2] = key, 'h' .. key
    count(key, -1, -#key - bytes)
    change(record, key, byte(key) == WITH_VALUES and call('HGET', ENTRIES, key) or nil, nil, true)
  end
  swept = #fields / 2
  if swept > 0 then
    local gone = {unpack(keys, 1, swept)}
    call('HDEL', ENTRIES, unpack(fields))
    call('ZREM', INDEX, unpack(gone))
    call('ZREM', EXPIRY, unpack(gone))
    call('HSET', ENTRIES, 's', encoded_sizes())
    revision = revision + 1
    --> log
  end
  due = tonumber(call('ZRANGE', EXPIRY, 0, 0, 'WITHSCORES')[2] or 0)
end

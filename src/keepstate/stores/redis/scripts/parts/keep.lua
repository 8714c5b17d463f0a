-- Stores the answer to a retry (`kind`, `number`, `rest`). If the original arrives later, it gets the same answer.
call('HSET', RETRIES, token, pack('>I8I8s', now + RETRY_KEPT_MS, number, kind) .. rest)
local kept = call('HGETALL', RETRIES)
for i = 1, #kept, 2 do
  if unpack_struct('>I8', kept[i + 1]) <= now then call('HDEL', RETRIES, kept[i]) end
end
call('PEXPIRE', RETRIES, RETRY_KEPT_MS)
clock, retries = now, now + RETRY_KEPT_MS

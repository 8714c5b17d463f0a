-- Tries each write command of the other scripts on two temporary keys, so that a missing permission shows when the store
-- is opened, not in the middle of a batch.
--
-- Replies: the names of the commands that are forbidden.

local forbidden = {}
for _, words in ipairs({
  {'HSET', ENTRIES, 'm', ''}, {'HDEL', ENTRIES, 'm'}, {'ZADD', INDEX, 0, 'm'}, {'ZREM', INDEX, 'm'},
  {'PEXPIRE', RETRIES, 1}, {'UNLINK', ENTRIES, INDEX}, {'SPUBLISH', ENTRIES, ''},
}) do
  local reply = redis.pcall(unpack(words))
  local failure = type(reply) == 'table' and reply.err or ''
  if string.find(failure, 'ACL failure', 1, true) or string.find(failure, 'NOPERM', 1, true) then
    forbidden[#forbidden + 1] = words[1]
  end
end
return forbidden

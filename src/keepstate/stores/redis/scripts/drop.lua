-- Empties a space as its next revision. The state stays, so no revision number is used twice.
--
-- ARGV: mark, nonce, the client's clock. Replies: dropped REVISION NONCE · clock NOW · lost · format NUMBER · moving

local mark, client, stored = ARGV[1], tonumber(ARGV[3]), call('HGET', ENTRIES, 'm')
--> state
if revision > floor then
  --> settled
  --> now
  --> leap
  clock, revision, nonce = now, revision + 1, ARGV[2]
  floor, floor_nonce, due, log_bytes = revision, nonce, 0, 0
  for _, key in ipairs({ENTRIES, LOG, INDEX, EXPIRY}) do call('UNLINK', key) end
  --> save
  --> hint
end
return {'dropped', revision, nonce}

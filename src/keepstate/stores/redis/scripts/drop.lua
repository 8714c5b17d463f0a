-- Empties a space as its next revision. The state stays, so no revision number is used twice.
--
-- ARGV: mark, nonce, the client's clock, the only revision to drop at or 0. Replies: dropped REVISION NONCE · clock NOW · lost · format NUMBER · moving

local mark, client, stored = ARGV[1], tonumber(ARGV[3]), call('HGET', ENTRIES, 'm')
local at = tonumber(ARGV[4])
--> state
if revision > floor and (at == 0 or at == revision) then
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

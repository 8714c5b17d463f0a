-- Removes expired entries of a space as its next revision.
--
-- ARGV: mark, nonce, limit, the client's clock. Replies: swept COUNT REVISION NONCE · clock NOW · lost · format NUMBER · moving

local mark, client, stored = ARGV[1], tonumber(ARGV[4]), call('HGET', ENTRIES, 'm')
--> state
if due == 0 then return {'swept', 0, revision, nonce} end
--> settled
--> now
--> leap
--> change
local stored_sizes = call('HGET', ENTRIES, 's') or ''
--> sizes
local own_nonce, limit = ARGV[2], tonumber(ARGV[3])
--> sweep
if swept > 0 then
  --> save
  --> hint
end
return {'swept', swept, revision, nonce}

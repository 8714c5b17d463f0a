-- The stored form of a space. Each script begins with this text, after the constants that Python adds. A line
-- `--> NAME` is replaced by the text of `parts/NAME.lua`. Parts are text and not functions, because a script runs for
-- about 20 us, and defining a function takes time even if it is not called.
--
-- ENTRIES, a hash:  'm' the space's state, KEY an entry's value, 'h'..KEY its head: version, created, expiry, size;
--                   't'..TOKEN the revision of the batch in the log with this token; 's' the sizes of the space's
--                   parts: entries, bytes, size of the name, and the name of each
-- LOG, a hash:      'n'..REVISION a record's head: nonce, now, size, changes, token; 'b'..REVISION its changes
-- INDEX, a sorted set of all keys with score 0, for scans; EXPIRY, a sorted set of the keys that expire, by time
-- RETRIES, a hash:  TOKEN the answer to a retry, which outlives the log and the space
--
-- A key's first byte is 00, 01 or 02, so a field that begins with a letter is never a key. Numbers are big-endian.
-- Scripts do not roll back, so each step that can fail comes before the first write. Numbers are doubles, exact to 2^53.

local call, pack, unpack_struct, byte, sub = redis.call, struct.pack, struct.unpack, string.byte, string.sub
local ENTRIES, LOG, INDEX, EXPIRY, RETRIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local STATE, HEAD = '>BI8c8I8I8I8I8I8c8I8I8I8', '>I8I8I8I4'
local RECORD, RECORD_BYTES = '>c8I8I8I4', 28
local NO_NONCE = '\0\0\0\0\0\0\0\0'
local revision, nonce, floor, clock, due, retries, log_bytes, floor_nonce = 0, NO_NONCE, 0, 0, 0, 0, 0, NO_NONCE
local leap_revision, leap_from, leap_to = 0, 0, 0

-- How a space is kept. Every script begins with this, and with the constants that Python puts before it; a line
-- `--> NAME` stands for the text of `parts/NAME.lua`. Text and not functions: a script runs for some 20 us, of which
-- each function made and not called takes its share.
--
-- ENTRIES, a hash:  'm' the space's state, KEY an entry's value, 'h'..KEY its head: version, created, expiry, size;
--                   't'..TOKEN the revision that a batch in the log applied as
-- LOG, a hash:      'n'..REVISION a record's head: nonce, now, size, changes, token; 'b'..REVISION its changes
-- INDEX, a sorted set of the keys, all of score 0, for scans; EXPIRY, one of the keys that expire, by that time
-- RETRIES, a hash:  TOKEN what a retry was answered, which outlives the log and the space
--
-- A key's first byte is 00, 01 or 02, so that no letter in front of one is taken for a key. Numbers are big-endian.
-- Scripts do not roll back: whatever can fail stands before the first write. Numbers are doubles, exact to 2^53.

local call, pack, unpack_struct, byte, sub = redis.call, struct.pack, struct.unpack, string.byte, string.sub
local ENTRIES, LOG, INDEX, EXPIRY, RETRIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local STATE, HEAD = '>BI8c8I8I8I8I8I8c8I8I8I8', '>I8I8I8I4'
local RECORD, RECORD_BYTES = '>c8I8I8I4', 28
local NO_NONCE = '\0\0\0\0\0\0\0\0'
local revision, nonce, floor, clock, due, retries, log_bytes, floor_nonce = 0, NO_NONCE, 0, 0, 0, 0, 0, NO_NONCE
local leap_revision, leap_from, leap_to = 0, 0, 0

-- Writes the state.
call('HSET', ENTRIES, 'm', pack(STATE, FORMAT, revision, nonce, floor, clock, due, retries, log_bytes, floor_nonce,
  leap_revision, leap_from, leap_to))

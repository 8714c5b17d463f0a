-- Tells who waits that the space changed. Who may not publish still writes: hints are no part of a batch.
redis.pcall('SPUBLISH', ENTRIES, '')

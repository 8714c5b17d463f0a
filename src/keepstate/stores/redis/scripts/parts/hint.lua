-- Notifies listeners of the change. A client without the permission to publish can still write.
redis.pcall('SPUBLISH', ENTRIES, '')

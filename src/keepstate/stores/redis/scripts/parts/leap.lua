-- Rejects a leap of the space's time unless the client's clock, `client`, confirms it. Records an accepted leap.
if now - clock > LEAP_MS then
  if math.abs(now - client) > LEAP_MS then return {'clock', now} end
  leap_revision, leap_from, leap_to = revision + 1, clock, now
end

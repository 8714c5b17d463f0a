-- Refuses a leap of the space's time that the clock of the client, `client`, does not confirm; the state keeps another.
if now - clock > LEAP_MS then
  if math.abs(now - client) > LEAP_MS then return {'clock', now} end
  leap_revision, leap_from, leap_to = revision + 1, clock, now
end

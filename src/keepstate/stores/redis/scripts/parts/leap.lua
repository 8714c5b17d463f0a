-- Refuses a leap of the space's time that the clock of the client, `client`, does not confirm.
if now - clock > LEAP_MS and math.abs(now - client) > LEAP_MS then return {'clock', now} end

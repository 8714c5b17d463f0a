-- `now`: the server's time, or the space's last time if that is later.
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now < clock then now = clock end

"""A team of agents that index Python's standard library on one store, while some of them are killed.

Run it with `make demo`. To read it, start with `stage`: the managers, and the space that they share. Then
`agent` and `conductor`, which run in processes of their own (`worker` starts them), and `tool`, which they
ask. `director` starts, kills and pauses the processes (`company`) and prints what happens. Afterwards
`counting` counts everything again, `views` prints the data of each manager, and `ending` the history.

Everything that the demo prints was read from the store or computed from it.
"""

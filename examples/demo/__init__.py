"""A team of agents that index Python's standard library on one store, while some of them are killed.

Run it with `make demo`. To read it, start with `stage`: the managers, and the space that they share. Then
read `agent` and `conductor`, which run in their own processes (`worker` starts them), and `tool`, which they
call. `director` starts, kills and pauses the processes (`processes`) and reports events as they happen.
Afterwards `recount` counts everything again, `views` prints the data of each manager, and `history_tour` the
history.

The demo reads everything that it prints from the store, or computes it from the store.
"""

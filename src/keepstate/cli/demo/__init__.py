"""HOW does it look when agents work on one state, and some of them are killed? The `keepstate demo` command.

`command` is what a user calls. `company` has the processes, `director` lets them play and tells what happens,
`agent` and `conductor` are what runs in them (`worker` is their door), on the managers of `stage`. Afterwards
`counting` counts everything again, `views` shows what each manager knows, and `ending` the history.

Invariant: what is told was read from the store or computed from it; nothing is said that was not looked up.
"""

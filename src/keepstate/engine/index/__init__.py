"""WHICH subjects does a tenant have? Sessions, threads, agents, workflows, teams, machines and queues.

`carrier` moves the outboxes of subjects into the tenant's space `keepstate:index`, `listing` reads pages of
it, `delivery` carries in the background, and `audit` compares it with the spaces that `walk` reads. To list
another kind of subject, add it to `kernel.subjects` and a reader to `summaries`.
"""

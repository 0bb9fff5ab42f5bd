"""The benchmark: this project and the systems that a user would pick instead, on one machine, in one run.

``python -m bench SCENARIO`` runs one scenario, ``python -m bench all`` every one.
See ``docs/understand/benchmarks.md``.

The rules that make the figures fair:

- Every system runs its own public API, in worker processes of its own; nothing of it runs in the measuring process
  but its client. Its settings are printed.
- Default durability: fsync on, and no setting of the database that a user would not get.
- A workflow's output says which process ran each turn and when. It is read back and checked: no turn is missing,
  none is out of order.
- A turn counts when it is durable, that is when the next one has begun: a workflow of T turns runs T + 1 activities.
- The systems take turns within a run, round after round, so that a disturbance hits all of them.
"""

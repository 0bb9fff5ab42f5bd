"""The application: its activities and orchestrations, and what guests let it declare."""

from __future__ import annotations

from affinity.schedules.declaring import ScheduleDeclarations


class App(ScheduleDeclarations):
    """A registry of activities and orchestrations, which a worker runs.

    The decorators return the function, which ``schedule_activity`` and ``schedule_sub_orchestration`` take as the
    reference. An activity that an orchestration calls itself raises `OrchestrationMisuse`. A function takes its context
    and at most one input. The annotations of input and result are their JSON types. When a notebook's cell runs again,
    its functions take the place of their former definitions.
    """

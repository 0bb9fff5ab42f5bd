"""The application: its activities and orchestrations, and what guests let it declare."""

from __future__ import annotations

from affinity.flow.declaring import LimitDeclarations
from affinity.schedules.declaring import ScheduleDeclarations


class App(LimitDeclarations, ScheduleDeclarations):
    """A registry of activities and orchestrations, which a worker runs.

    The decorators return the function, which ``schedule_activity`` and ``schedule_sub_orchestration`` take as the
    reference. An activity that an orchestration calls itself raises `OrchestrationMisuse`. A function takes its context
    and at most one input. The annotations of input and result are their JSON types. When a notebook's cell runs again,
    its functions take the place of their former definitions.

    Args:
        name: of the app.
        limits: which it declares, beside those in ``limits=`` of its activities: `Limit` objects that are named only
            where work is scheduled or instances are started. The database has them as soon as a worker of the newest
            version of the app runs. A limit that this version no longer declares holds nothing back.
    """

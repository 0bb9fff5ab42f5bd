"""The rules of conversations in one class."""

from __future__ import annotations

from typing import ClassVar

from affinity_conformance.providers.conversation.admin import JournalAdministrationRules
from affinity_conformance.providers.conversation.delegations import JournalDelegationRules
from affinity_conformance.providers.conversation.descriptions import JournalDescriptionRules
from affinity_conformance.providers.conversation.fault_verbs import JOURNALS
from affinity_conformance.providers.conversation.fetches import JournalFetchRules
from affinity_conformance.providers.conversation.forks import JournalForkRules
from affinity_conformance.providers.conversation.journals import JournalRules
from affinity_conformance.providers.conversation.lineage import LineageRules
from affinity_conformance.providers.conversation.old_data import OldDataRules
from affinity_conformance.providers.conversation.open_requests import OpenRequestRules
from affinity_conformance.providers.conversation.parking import ParkingRules
from affinity_conformance.providers.conversation.reading import JournalReadingRules
from affinity_conformance.providers.conversation.requests import JournalRequestRules
from affinity_conformance.providers.conversation.steps import JournalStepRules
from affinity_conformance.providers.conversation.streams import JournalStreamRules
from affinity_conformance.providers.conversation.waits import JournalWaitRules
from affinity_conformance.providers.conversation.wakes import JournalWakeRules
from affinity_conformance.providers.conversation.writes import JournalWriteRules
from affinity_conformance.providers.fault_fixtures import FaultPart


class ConversationConformance(
    JournalRules,
    JournalRequestRules,
    JournalReadingRules,
    JournalWriteRules,
    JournalWakeRules,
    ParkingRules,
    JournalStepRules,
    JournalDelegationRules,
    JournalStreamRules,
    JournalWaitRules,
    JournalAdministrationRules,
    JournalDescriptionRules,
    OldDataRules,
    OpenRequestRules,
    JournalForkRules,
    LineageRules,
    JournalFetchRules,
):
    """The rules of conversations. They belong to a class that has the kernel's, too."""

    fault_part: ClassVar[FaultPart] = JOURNALS

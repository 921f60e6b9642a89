"""The scheduler's three verbs, and what they share."""

from typing import Any

from ateplace.cluster.feed import View
from ateplace.extender import decision_log
from ateplace.extender.claim_writer import ClaimWriter
from ateplace.extender.context import Context
from ateplace.extender.filter.handler import Filter
from ateplace.extender.preempt.evict import Evictions
from ateplace.extender.preempt.handler import Preempt
from ateplace.extender.prioritize import Prioritize
from ateplace.extender.victims import Victims
from ateplace.kube import Kube
from ateplace.settings import Settings


class Verbs:
    def __init__(self, kube: Kube, view: View, settings: Settings) -> None:
        ledger = view.ledger
        self.decisions = decision_log.Ring(settings.extender.decisions)
        self.claims = ClaimWriter(kube, ledger, settings.substrate, deadline=settings.extender.deadline)
        victims = Victims()
        context = Context(kube, view, settings, victims)
        evictions = Evictions(kube, view, victims)
        shared: Any = {"claims": self.claims, "victims": victims, "decisions": self.decisions}
        self.filter_verb = Filter(kube, context, ledger, settings, **shared)
        self.filter = self.filter_verb.filter
        self.prioritize = Prioritize(context, ledger, settings).prioritize
        self.preempt = Preempt(context, ledger, settings, evictions=evictions, **shared).preempt
        self.is_blind = context.is_blind

    async def close(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self.filter_verb.close()
        await self.claims.close()

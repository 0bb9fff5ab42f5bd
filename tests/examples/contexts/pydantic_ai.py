from pydantic import BaseModel
from pydantic_ai import Agent

from affinity.integrations.pydantic_ai import AffinityDurability

agent = Agent("test", name="clerk", capabilities=[AffinityDurability()])


class Chat(BaseModel):
    pass

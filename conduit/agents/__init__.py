"""Several agents in one environment: a table for each agent or policy, or one table of joint steps.

    tables = agents.create(store, "arena", {"walker": schema, "flyer": schema}, 100_000)
    with tables.writer(policy_of=lambda agent: agent.split("_")[0]) as w:
        w.reset(obs)                                    # dicts by agent, as RLlib and PettingZoo give them
        w.step(actions, obs, rewards, terminated, truncated)
    batches = tables.sample(32)                         # {"walker": Batch, "flyer": Batch}
"""

from conduit.agents.joint import JointWriter, joint_schema
from conduit.agents.tables import AgentTables, attach, create
from conduit.agents.writer import AgentWriter

__all__ = ["AgentTables", "AgentWriter", "JointWriter", "attach", "create", "joint_schema"]

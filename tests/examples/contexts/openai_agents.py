from agents import Agent

agent = Agent(name="clerk")

// The agent of AG-UI's client, which verifies the events of each run.
import { HttpAgent, runHttpRequest, transformHttpEventStream } from '@ag-ui/client';
import { serve, Wire } from './commands.mjs';

const wire = new Wire();

class Agent extends HttpAgent {
  connect() {
    return transformHttpEventStream(runHttpRequest(() => wire.fetch(`${this.base}/${this.threadId}/ag-ui`)));
  }
}

let agent;
let seen = [];
let states = [];

function report() {
  const { messages, state, pendingInterrupts } = agent;
  return structuredClone({ messages, state, interrupts: pendingInterrupts, seen, states });
}

async function done(running) {
  let error = null;
  try {
    await running;
  } catch (problem) {
    error = String(problem?.message ?? problem);
  }
  return { ...report(), error };
}

await serve({
  open({ base, thread, messages = [] }) {
    seen = [];
    states = [];
    agent = new Agent({ url: `${base}/ag-ui`, threadId: thread, initialMessages: messages, fetch: wire.fetch });
    agent.base = base;
    agent.subscribe({
      onEvent: ({ event }) => { states.push(event.type); },
      onMessagesChanged: ({ messages: now }) => {
        const text = now.filter(each => each.role === 'assistant').map(each => each.content ?? '').join('|');
        if (seen.at(-1) !== text) seen.push(text);
      },
    });
  },
  cut({ after }) { wire.left = after ?? Infinity; },
  report,
  begin({ id, text }) {
    agent.addMessage({ id, role: 'user', content: text });
    agent.running = done(agent.runAgent());
  },
  ended() { return agent.running; },
  async until({ text }) {
    while (!(seen.at(-1) ?? '').includes(text)) await new Promise(wait => setTimeout(wait, 5));
    return report();
  },
  async send({ id, text }) {
    agent.addMessage({ id, role: 'user', content: text });
    return done(agent.runAgent());
  },
  async again() { return done(agent.runAgent()); },
  async resume({ entries }) { return done(agent.runAgent({ resume: entries })); },
  async connect() { return done(agent.connectAgent()); },
});

// The chat of Vercel's AI SDK, as useChat has it, without React.
import { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';
import { serve, Wire } from './commands.mjs';

class Chat extends AbstractChat {
  constructor({ messages = [], ...init }) {
    super({ ...init, state: { status: 'ready', error: undefined, messages, snapshot: structuredClone } });
    const state = this.state;
    state.pushMessage = message => (state.messages = [...state.messages, message]);
    state.popMessage = () => (state.messages = state.messages.slice(0, -1));
    state.replaceMessage = (index, message) => {
      state.messages = state.messages.with(index, structuredClone(message));
      note(message);
    };
  }
}

const wire = new Wire();
let seen = [];
let chat;
let data = [];
let calls = [];

function textOf(message) {
  return message.parts.filter(part => part.type === 'text').map(part => part.text).join('|');
}

function note(message) {
  const text = textOf(message);
  if (seen.at(-1) !== text) seen.push(text);
}

function report() {
  const { status, error, messages } = chat;
  const answer = { status, error: error?.message ?? null, messages, seen, data, calls, lastId: wire.lastId };
  return structuredClone(answer);
}

async function settled() {
  await new Promise(done => setTimeout(done, 0));
  while (chat.status === 'submitted' || chat.status === 'streaming') await new Promise(done => setTimeout(done, 5));
  return report();
}

await serve({
  open({ api, id, messages, replay = true }) {
    seen = [];
    data = [];
    calls = [];
    const transport = new DefaultChatTransport({
      api,
      fetch: wire.fetch,
      resumeStreamIsReplay: replay,
      prepareReconnectToStreamRequest: replay ? undefined : ({ id: name }) => ({
        api: `${api}/${encodeURIComponent(name)}/stream`,
        headers: { 'Last-Event-ID': wire.lastId },
      }),
    });
    chat = new Chat({
      id, transport, messages,
      onData: part => data.push(part),
      onToolCall: ({ toolCall }) => { calls.push(toolCall.toolName); },
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    });
  },
  cut({ after }) { wire.left = after ?? Infinity; },
  point({ api }) { chat.transport.api = api; },
  report,
  settled,
  begin({ text }) { void chat.sendMessage({ text }); },
  async until({ text }) {
    const shows = message => message.role === 'assistant' && textOf(message).includes(text);
    while (!chat.messages.some(shows)) await new Promise(done => setTimeout(done, 5));
    return report();
  },
  async send({ text }) { await chat.sendMessage({ text }); return settled(); },
  async resume() { await chat.resumeStream(); return settled(); },
  async regenerate() { await chat.regenerate(); return settled(); },
  async approve({ id, approved, reason }) {
    await chat.addToolApprovalResponse({ id, approved, reason });
    return settled();
  },
  async output({ tool, toolCallId, output }) {
    await chat.addToolOutput({ tool, toolCallId, output });
    await chat.sendMessage();
    return settled();
  },
});

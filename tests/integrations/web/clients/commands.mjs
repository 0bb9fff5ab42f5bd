// Commands as lines of JSON in, one line of JSON out for each: what a test in Python and a client in Node say.
import { createInterface } from 'node:readline';

// AG-UI's client cancels a body that has failed, and waits for nobody to hear of that.
process.on('unhandledRejection', error => {
  if (error?.message !== 'network error') throw error;
});

export async function serve(handlers) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { name, ...args } = JSON.parse(line);
    let answer;
    try {
      answer = { value: (await handlers[name](args)) ?? null };
    } catch (error) {
      answer = { error: String(error?.message ?? error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}

// A fetch whose answers can be cut off after so many events of their streams, as a network does it. It keeps the id of
// the last event that was whole.
export class Wire {
  constructor() {
    this.left = Infinity;
    this.lastId = null;
    this.events = 0;
    this.fetch = this.fetch.bind(this);
  }

  async fetch(url, init) {
    const response = await fetch(url, init);
    if (!response.body || !response.ok) return response;
    const wire = this;
    let rest = '';
    const decoder = new TextDecoder();
    const encoder = new TextEncoder();
    const cutter = new TransformStream({
      transform(bytes, controller) {
        rest += decoder.decode(bytes, { stream: true });
        for (let end = rest.indexOf('\n\n'); end >= 0; end = rest.indexOf('\n\n')) {
          const event = rest.slice(0, end + 2);
          rest = rest.slice(end + 2);
          if (wire.left <= 0) throw new TypeError('network error');
          wire.left -= 1;
          wire.events += 1;
          const id = /^id: (.*)$/m.exec(event);
          if (id) wire.lastId = id[1];
          controller.enqueue(encoder.encode(event));
        }
      },
    });
    return new Response(response.body.pipeThrough(cutter), response);
  }
}

// What the official SDKs for Node make of a gateway's answers. Reads a list of calls from standard input,
// [{url, key, call, model, text, tokens, retries}], makes them one after the other, and prints what came of each:
// {text, …} or {raised, status, code, type, requestID}.
"use strict";
const { OpenAI } = require("openai");
const { Anthropic } = require("@anthropic-ai/sdk");

const openai = (ask) =>
  new OpenAI({ baseURL: `${ask.url}/v1`, apiKey: ask.key, maxRetries: ask.retries ?? 0, timeout: 30_000 });
const anthropic = (ask) =>
  new Anthropic({ baseURL: ask.url, apiKey: ask.key, maxRetries: ask.retries ?? 0, timeout: 30_000 });
const messages = (ask) => [{ role: "user", content: ask.text }];

const CALLS = {
  async models(ask) {
    const names = [];
    for await (const model of openai(ask).models.list()) names.push(model.id);
    return { names };
  },
  async chat(ask) {
    const body = { model: ask.model, messages: messages(ask), max_tokens: ask.tokens };
    const answer = await openai(ask).chat.completions.create(body);
    return { text: answer.choices[0].message.content, output: answer.usage.completion_tokens, id: answer._request_id };
  },
  async chatStream(ask) {
    const body = { model: ask.model, messages: messages(ask), max_tokens: ask.tokens, stream: true };
    let text = "";
    for await (const chunk of await openai(ask).chat.completions.create(body)) {
      text += chunk.choices[0].delta.content ?? "";
    }
    return { text };
  },
  async completion(ask) {
    const body = { model: ask.model, prompt: ask.text, max_tokens: ask.tokens };
    const answer = await openai(ask).completions.create(body);
    return { text: answer.choices[0].text, output: answer.usage.completion_tokens };
  },
  async response(ask) {
    const body = { model: ask.model, input: ask.text, max_output_tokens: ask.tokens };
    const answer = await openai(ask).responses.create(body);
    return { text: answer.output_text, output: answer.usage.output_tokens };
  },
  async responseStream(ask) {
    const body = { model: ask.model, input: ask.text, max_output_tokens: ask.tokens, stream: true };
    let text = "";
    let last;
    for await (const event of await openai(ask).responses.create(body)) {
      if (event.type === "response.output_text.delta") text += event.delta;
      last = event;
    }
    return { text, last: last.type, output: last.response?.usage?.output_tokens };
  },
  async message(ask) {
    const body = { model: ask.model, messages: messages(ask), max_tokens: ask.tokens };
    const answer = await anthropic(ask).messages.create(body);
    return { text: answer.content[0].text, output: answer.usage.output_tokens, id: answer._request_id };
  },
  async messageStream(ask) {
    const body = { model: ask.model, messages: messages(ask), max_tokens: ask.tokens };
    const stream = anthropic(ask).messages.stream(body);
    const final = await stream.finalMessage();
    return { text: final.content[0].text, output: final.usage.output_tokens };
  },
  async countTokens(ask) {
    const count = await anthropic(ask).messages.countTokens({ model: ask.model, messages: messages(ask) });
    return { input: count.input_tokens };
  },
};

function raised(error) {
  const body = error.error?.error ?? error.error ?? {};
  return {
    raised: error.constructor.name,
    status: error.status,
    code: error.code ?? body.code,
    type: body.type ?? error.type,
    requestID: error.requestID,
  };
}

async function main() {
  let input = "";
  for await (const piece of process.stdin) input += piece;
  const results = [];
  for (const ask of JSON.parse(input)) {
    results.push(await CALLS[ask.call](ask).catch(raised));
  }
  process.stdout.write(JSON.stringify(results));
}

main();

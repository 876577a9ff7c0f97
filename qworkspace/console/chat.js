// One conversation: its turns, what is sent, stopped, resumed, and followed through lost connections.

import { ApiError, answerApproval, newId, pendingApprovals } from "./api.js";
import { announce, h } from "./dom.js";
import { t } from "./i18n.js";
import { forget, keep, unsent } from "./outbox.js";
import { Scroll } from "./scroll.js";
import { Backoff, TurnFollower } from "./stream.js";
import { TurnView } from "./turn.js";

const LIVE = new Set(["queued", "running"]);
const REJOIN_MS = 500;

/**
 * Shows one session in `log`. `on.busy(boolean)`, `on.link(key, connected)`, `on.changed()` after something that
 * the list of conversations shows, `on.unauthorized()`, `on.atEnd(boolean)` as the person scrolls.
 */
export class Conversation {
  constructor(log, on) {
    this.log = log;
    this.on = on;
    this.session = null;
    this.views = new Map(); // turn id -> TurnView
    this.following = new Map(); // TurnView -> AbortController
    this.backoffs = new Set();
    this.life = new AbortController();
    this.scroll = new Scroll(log, on.atEnd);
  }

  /** Show a stored session and give its facts; throws `ApiError` when it cannot be read. */
  async open(session) {
    this.close();
    this.session = session;
    this.log.replaceChildren(skeleton());
    const { signal } = this.life;
    const waiting = unsent(session.base);
    const facts = await Promise.all([session.facts(signal), this.read(signal)]).then(
      ([first]) => first,
      (error) => {
        // Not there yet, and on its way: the first message makes the session.
        if (error.status !== 404 || !waiting.length) throw error;
        return { title: "" };
      },
    );
    if (!signal.aborted) for (const { text, key } of waiting) this.send(text, key);
    this.scroll.toEnd();
    return facts;
  }

  /** Begin a session that has no messages yet. */
  begin(session) {
    this.close();
    this.session = session;
  }

  /** Leave the session. What runs goes on in the daemon. */
  close() {
    this.life.abort();
    this.life = new AbortController();
    for (const [view, controller] of this.following) {
      // What the daemon has not acknowledged is still sent; nobody looks at the answer.
      if (view.id) controller.abort();
      else view.left = controller;
    }
    this.following.clear();
    for (const view of this.views.values()) view.clear();
    this.views.clear();
    this.log.replaceChildren();
    this.session = null;
    this.scroll.toEnd();
    this.reportBusy();
  }

  get busy() {
    return this.following.size > 0;
  }

  /** Bring the page and the stored messages together, after events may have been missed. */
  async read(signal = this.life.signal) {
    const { session } = this;
    // The turns first: what ends in between is then stored already when the messages are read.
    const [{ turns }, { approvals }] = await Promise.all([session.turns(signal), pendingApprovals(signal)]);
    const groups = groupByTurn(await session.messages(signal));
    if (signal.aborted) return;
    const known = new Map(turns.map((turn) => [turn.id, turn]));
    const fresh = document.createDocumentFragment();
    for (const [id, messages] of groups) this.show(id, messages, known.get(id), approvals, fresh);
    this.log.querySelector(".skeleton")?.remove();
    this.log.append(fresh);
    this.scroll.stick();
  }

  show(id, messages, turn, approvals, fresh) {
    let view = this.views.get(id);
    if (view && (this.following.has(view) || !turn || view.state === turn.state)) return;
    if (!view) {
      view = this.makeView({ id, createdAt: new Date(messages[0].created_at) });
      this.views.set(id, view);
      fresh.append(view.element);
    }
    view.load(messages, turn);
    if (turn && LIVE.has(turn.state)) this.join(view);
    else this.showQuestions(view, approvals);
  }

  /** What an interrupted turn asked: answering it resumes the turn. */
  showQuestions(view, approvals) {
    for (const approval of approvals) {
      if (approval.turn_id === view.id)
        view.addApproval({ ...approval, approval_id: approval.id, name: approval.tool });
    }
  }

  makeView(facts) {
    return new TurnView(
      {
        answer: answerApproval,
        resume: (which, button) => this.resume(which, button),
        again: (which) => this.again(which),
        sources: (which) => this.session.sources(which.id),
        grown: () => this.scroll.stick(),
      },
      facts,
    );
  }

  /** Say something. The message is on the page at once, and sent until the daemon has it or refuses it. */
  send(text, key = newId("key")) {
    this.log.querySelector(".welcome, .skeleton")?.remove();
    const view = this.makeView({ text });
    this.log.append(view.element);
    view.working(t("turn.sending"));
    this.scroll.toEnd();
    const { session } = this;
    keep(session.base, key, text);
    view.key = key;
    this.follow(view, { start: (signal) => session.say(text, key, signal) });
  }

  again(view) {
    const { userText } = view;
    if (view.state === "unsent") view.element.remove();
    this.send(userText);
  }

  /** Follow a turn that runs already, told from its beginning. */
  join(view) {
    this.follow(view, { turnId: view.id });
  }

  /** A turn that was begun elsewhere: in another tab, or resumed by a late answer. */
  async discover(turnId) {
    const view = this.views.get(turnId);
    if (view && this.following.has(view)) return;
    if (view && view.state !== "interrupted") return;
    if (view) return this.join(view);
    await this.reread();
  }

  /** Read again, quietly: a failure leaves the page as it is. */
  async reread() {
    if (!this.session || this.unnamed) return;
    try {
      await this.read();
    } catch (error) {
      if (!(error instanceof ApiError) && error.name !== "AbortError") throw error;
    }
  }

  /** Whether a message is on its way whose turn is not known yet: it would look like one from elsewhere. */
  get unnamed() {
    return [...this.following.keys()].some((view) => !view.id);
  }

  async stop() {
    if (!this.busy) return;
    for (const view of this.following.keys()) view.working(t("composer.stop") + "…");
    try {
      await this.session.stop();
    } catch (error) {
      announce(error.message);
    }
  }

  async resume(view, button) {
    button.disabled = true;
    try {
      const response = await this.session.resume(view.id);
      response.body?.cancel();
      this.join(view);
    } catch (error) {
      button.disabled = false;
      if (error.status === 409) return this.settle(view);
      button.closest(".ending").querySelector("p").textContent = error.message;
    }
    return undefined;
  }

  retryNow() {
    for (const backoff of this.backoffs) backoff.now();
  }

  async follow(view, { turnId = null, start = null }) {
    const { session } = this;
    const controller = new AbortController();
    const backoff = new Backoff();
    this.following.set(view, controller);
    this.backoffs.add(backoff);
    this.reportBusy();
    // What is shown was read from the store: the first told event replaces it.
    let stale = turnId !== null;
    const follower = new TurnFollower({
      turnId,
      start,
      backoff,
      rejoin: (lastId, signal) => session.follow(lastId, signal),
      on: {
        event: (event) => {
          if (stale) view.clear();
          stale = false;
          this.told(view, follower, event);
        },
        restart: () => view.clear(),
        link: (connected) => this.linked(view, connected),
      },
    });
    try {
      const result = await follower.run(controller.signal);
      if (!result.aborted && (!result.ended || result.gap || view.unlike)) await this.settle(view, controller.signal);
    } catch (error) {
      this.failed(view, error);
    } finally {
      this.backoffs.delete(backoff);
      if (this.following.get(view) === controller) this.following.delete(view);
      this.on.link(view, true);
      this.reportBusy();
      if (!controller.signal.aborted) this.on.changed();
    }
  }

  told(view, follower, event) {
    if (!view.id) {
      forget(view.key);
      view.id = follower.turnId;
      if (view.left) return view.left.abort();
      const twin = this.views.get(view.id);
      if (twin && twin !== view) this.drop(twin);
      this.views.set(view.id, view);
      this.on.changed();
    }
    const matches = view.apply(event);
    if (event.type.startsWith("turn.") && event.type !== "turn.started") view.unlike = matches === false;
    if (event.type === "turn.completed") announce(t("turn.done"));
    return undefined;
  }

  drop(view) {
    this.following.get(view)?.abort();
    this.following.delete(view);
    view.clear();
    view.element.remove();
  }

  linked(view, connected) {
    this.on.link(view, connected);
    if (!connected && !view.id) view.working(t("turn.waiting"));
  }

  failed(view, error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) this.on.unauthorized();
    if (view.id) this.reread();
    else {
      forget(view.key);
      view.refuse(error);
    }
  }

  /** Show the turn as it is stored; as long as it still runs, follow it again. */
  async settle(view, signal = this.life.signal) {
    const { session } = this;
    const backoff = new Backoff();
    this.backoffs.add(backoff);
    while (!signal.aborted) {
      try {
        const [{ turns }, { approvals }] = await Promise.all([session.turns(signal), pendingApprovals(signal)]);
        const turn = turns.find(({ id }) => id === view.id);
        const messages = await session.messages(signal);
        view.load(
          messages.filter(({ turn_id: id }) => id === view.id),
          turn,
        );
        if (turn && LIVE.has(turn.state)) setTimeout(() => signal.aborted || this.join(view), REJOIN_MS);
        else this.showQuestions(view, approvals);
        break;
      } catch (error) {
        if (signal.aborted || !error.passing) break;
        await backoff.wait(signal);
      }
    }
    this.backoffs.delete(backoff);
    this.scroll.stick();
  }

  /** An approval was answered or ran out, here or elsewhere. */
  approvalClosed(id, how) {
    for (const view of this.views.values()) view.approvals.get(id)?.close(how);
  }

  reportBusy() {
    this.on.busy(this.busy);
  }
}

/** A placeholder while a conversation is being read. */
function skeleton() {
  return h(
    "div.skeleton",
    { role: "status", "aria-label": t("chat.load") },
    h("i.right"),
    h("i"),
    h("i"),
    h("i.short"),
  );
}

function groupByTurn(messages) {
  const groups = new Map();
  for (const message of messages) {
    if (!groups.has(message.turn_id)) groups.set(message.turn_id, []);
    groups.get(message.turn_id).push(message);
  }
  return groups;
}

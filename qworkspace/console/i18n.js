// Every text of the page, in two languages, in one place.

const LANGUAGES = { en: "English", zh: "中文" };
const KEPT = "qworkspace.language";

// key: [English, Chinese]; {name} is replaced by a value.
const TEXTS = {
  "agents": ["Agents", "助手"],
  "agents.empty": ["No agents are configured.", "尚未配置助手。"],
  "agents.filter": ["Filter agents", "筛选助手"],
  "approval.allow": ["Allow", "允许"],
  "approval.allowed": ["Allowed.", "已允许。"],
  "approval.answered": ["This was answered elsewhere.", "已在别处处理。"],
  "approval.deny": ["Deny", "拒绝"],
  "approval.denied": ["Denied.", "已拒绝。"],
  "approval.expired": ["Nobody answered in time, so it was denied.", "超时未答复，已自动拒绝。"],
  "approval.left": ["{time} left to answer", "剩余 {time}"],
  "approval.title": ["May I use {tool}?", "可以使用 {tool} 吗？"],
  "approval.announce": ["The agent asks for permission to use {tool}", "助手请求使用 {tool}"],
  "banner.lost": ["The connection to the daemon is lost. Trying again…", "与守护进程的连接已断开，正在重连…"],
  "banner.offline": ["This device is offline. What runs goes on; the page catches up by itself.", "设备已离线。任务仍在继续，恢复后页面会自动同步。"],
  "banner.retry": ["Try now", "立即重试"],
  "cancel": ["Cancel", "取消"],
  "chat.log": ["Conversation", "对话内容"],
  "chat.load": ["Loading the conversation…", "正在加载对话…"],
  "chat.loadFailed": ["The conversation could not be loaded", "无法加载对话"],
  "chat.new": ["New conversation", "新对话"],
  "chat.latest": ["Jump to the latest", "跳到最新"],
  "chat.missing": ["There is no such conversation. It may have been deleted.", "没有这个对话，可能已被删除。"],
  "chat.agentMissing": ["There is no agent “{agent}”.", "没有名为“{agent}”的助手。"],
  "close": ["Close", "关闭"],
  "composer.hint": ["Enter sends · Shift+Enter for a new line · Esc stops", "Enter 发送 · Shift+Enter 换行 · Esc 停止"],
  "composer.label": ["Message", "消息"],
  "composer.placeholder": ["Message {agent}…", "给 {agent} 发消息…"],
  "composer.send": ["Send", "发送"],
  "composer.queue": ["Send next", "排队发送"],
  "composer.stop": ["Stop", "停止"],
  "connection.lost": ["Reconnecting…", "正在重连…"],
  "connection.live": ["Connected", "已连接"],
  "connection.offline": ["Offline", "离线"],
  "copied": ["Copied", "已复制"],
  "copy": ["Copy", "复制"],
  "delete": ["Delete", "删除"],
  "delete.body": ["“{title}” and everything said in it will be gone. This cannot be undone.", "“{title}”及其全部内容将被删除，无法恢复。"],
  "delete.title": ["Delete this conversation?", "删除这个对话？"],
  "empty.hello": ["Hello, I am {agent}.", "你好，我是 {agent}。"],
  "empty.text": ["Ask anything, or begin with one of these.", "想聊什么都可以，也可以从下面开始。"],
  "empty.try1": ["What can you do for me?", "你能帮我做什么？"],
  "empty.try2": ["Which files are in your workspace?", "你的工作区里有哪些文件？"],
  "empty.try3": ["/help", "/help"],
  "error.network": ["The daemon does not answer.", "守护进程没有响应。"],
  "error.again": ["Try again", "重试"],
  "language": ["Language", "语言"],
  "md.code": ["code", "代码"],
  "md.done": ["done", "已完成"],
  "md.open": ["open", "未完成"],
  "md.table": ["table", "表格"],
  "menu.open": ["Show conversations", "显示对话列表"],
  "menu.close": ["Hide conversations", "隐藏对话列表"],
  "menu.more": ["Actions for “{title}”", "“{title}”的操作"],
  "model": ["Model", "模型"],
  "model.none": ["No model", "未连接模型"],
  "model.offline": ["No model is connected: answers come from the built-in offline assistant.", "尚未连接模型：由内置的离线助手回答。"],
  "model.how": ["How to connect one", "如何连接"],
  "model.how.title": ["Connect a model", "连接模型"],
  "model.how.intro": ["Add a provider to {file} and name a default model. Any OpenAI-compatible server works, also one on this machine.", "在 {file} 中添加提供方并指定默认模型。任何兼容 OpenAI 的服务都可以，包括本机服务。"],
  "model.how.local": ["A local server (Ollama)", "本机服务（Ollama）"],
  "model.how.cloud": ["A hosted provider", "云端提供方"],
  "model.how.key": ["The key is read from the environment or from secrets.json; it need not stand in this file. The next message uses the new model; to check:", "密钥从环境变量或 secrets.json 读取，无需写入此文件。下一条消息即使用新模型；检查："],
  "model.offlineName": ["offline assistant", "离线助手"],
  "notice.queued": ["Waiting for the answer before this one", "等待上一条回答"],
  "notice.compacted": ["Earlier messages were summarised to make room", "较早的消息已被摘要"],
  "offline.page": ["The daemon cannot be reached", "无法连接守护进程"],
  "offline.text": ["Start it with the command below; this page connects by itself.", "用下面的命令启动，页面会自动连接。"],
  "pair.busy": ["Pairing this browser…", "正在配对此浏览器…"],
  "pair.code": ["Pairing link or code", "配对链接或配对码"],
  "pair.do": ["Pair", "配对"],
  "pair.failed": ["This pairing link does not work: it was used already, or it is too old. Make a new one.", "此配对链接无效：已被使用或已过期。请重新生成。"],
  "pair.or": ["or paste the link here", "或在此粘贴链接"],
  "pair.step1": ["Open a terminal on the computer that runs the daemon.", "在运行守护进程的电脑上打开终端。"],
  "pair.step2": ["Run this command:", "运行以下命令："],
  "pair.step3": ["Open the link that it prints. It works once.", "打开它输出的链接（仅可使用一次）。"],
  "pair.text": ["Your agents are private: each browser is let in once, by a link that only this computer’s user can make.", "你的助手是私密的：每个浏览器需通过一次性链接配对，只有这台电脑的用户能生成该链接。"],
  "pair.title": ["Pair this browser", "配对此浏览器"],
  "pin": ["Pin", "置顶"],
  "problems": ["{n} problems", "{n} 个问题"],
  "problems.one": ["1 problem", "1 个问题"],
  "problems.title": ["Problems", "问题"],
  "rename": ["Rename", "重命名"],
  "rename.title": ["Rename the conversation", "重命名对话"],
  "save": ["Save", "保存"],
  "sessions": ["Conversations", "对话"],
  "sessions.empty": ["No conversations yet. The first message makes one.", "还没有对话，发出第一条消息即可开始。"],
  "sessions.more": ["Show more", "显示更多"],
  "sessions.none": ["Nothing matches “{query}”.", "没有匹配“{query}”的对话。"],
  "sessions.pinned": ["Pinned", "已置顶"],
  "sessions.search": ["Search conversations", "搜索对话"],
  "sessions.failed": ["The list could not be loaded.", "无法加载列表。"],
  "session.running": ["answering", "正在回答"],
  "session.unread": ["new", "有新消息"],
  "skip": ["Skip to the message box", "跳到输入框"],
  "state.failed": ["failed", "出错"],
  "thinking": ["Thinking…", "思考中…"],
  "thought": ["Thoughts", "思考过程"],
  "time.earlier": ["Earlier", "更早"],
  "time.today": ["Today", "今天"],
  "time.week": ["Last seven days", "最近七天"],
  "time.yesterday": ["Yesterday", "昨天"],
  "tool.args": ["Arguments", "参数"],
  "tool.denied": ["denied", "已拒绝"],
  "tool.error": ["failed", "失败"],
  "tool.file": ["The whole output is in {file}", "完整输出保存在 {file}"],
  "tool.interrupted": ["interrupted", "已中断"],
  "tool.ok": ["done", "完成"],
  "tool.result": ["Result", "结果"],
  "tool.running": ["running", "运行中"],
  "turn.again": ["Send again", "重新发送"],
  "turn.cancelled": ["Stopped.", "已停止。"],
  "turn.done": ["Answer complete", "回答完成"],
  "turn.failed": ["This turn failed", "本轮失败"],
  "turn.interrupted": ["This answer was interrupted before it was complete.", "回答在完成前被中断。"],
  "turn.resume": ["Resume", "继续"],
  "turn.sending": ["Sending…", "发送中…"],
  "turn.unsent": ["Not sent", "未发送"],
  "turn.waiting": ["Waiting for the daemon…", "等待守护进程…"],
  "turn.working": ["Working…", "处理中…"],
  "turn.tokens": ["{in} in · {out} out", "输入 {in} · 输出 {out}"],
  "turn.you": ["You", "你"],
  "unpin": ["Unpin", "取消置顶"],
};

const language = choose();
const column = Object.keys(LANGUAGES).indexOf(language);

/** The text of `key`, with `{name}` replaced by the values. */
export function t(key, values = {}) {
  const text = TEXTS[key]?.[column] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

/** Whether there is a text of that key: for codes that come from the daemon. */
export function hasText(key) {
  return key in TEXTS;
}

/** The page's language, and those it could have. */
export function currentLanguage() {
  return language;
}

export const languages = LANGUAGES;

/** Remember the choice and show the page in it; what streams is re-joined. */
export function chooseLanguage(name) {
  remember(name);
  location.reload();
}

/** A moment for people: the time today, the day before that. */
export function formatMoment(date, now = new Date()) {
  const sameDay = date.toDateString() === now.toDateString();
  const sameYear = date.getFullYear() === now.getFullYear();
  const options = sameDay
    ? { hour: "2-digit", minute: "2-digit" }
    : { month: "short", day: "numeric", ...(sameYear ? {} : { year: "numeric" }) };
  return new Intl.DateTimeFormat(language, options).format(date);
}

/** Day and time in full, for tooltips. */
export function formatFull(date) {
  return new Intl.DateTimeFormat(language, { dateStyle: "full", timeStyle: "short" }).format(date);
}

export function formatNumber(number) {
  return new Intl.NumberFormat(language).format(number);
}

export function formatDuration(milliseconds) {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(1)} s`;
  return `${Math.floor(milliseconds / 60_000)} min ${Math.round((milliseconds % 60_000) / 1000)} s`;
}

function choose() {
  let kept = null;
  try {
    kept = localStorage.getItem(KEPT);
  } catch {
    // A browser that keeps nothing: its own language decides.
  }
  if (kept in LANGUAGES) return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

function remember(name) {
  try {
    localStorage.setItem(KEPT, name);
  } catch {
    // Nothing to keep it in.
  }
}

"use strict";
// Draws the state that the server gives; every act is a call that gives the next state.
const main = document.getElementById("main"), live = document.getElementById("live"), base = location.pathname;
let state = null, ticking = 0, told = "";

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "act") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function say(text) { live.textContent = ""; setTimeout(() => { live.textContent = text; }, 60); }

async function ask(name, body) {
  try {
    const options = body && {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
    const answer = await fetch(base + name, options || {});
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  } catch (error) {
    const text = error instanceof TypeError ? "The server has ended. Start it again: burnish practice --web" : error.message;
    const line = el("p", {class: "error", role: "alert"}, text);
    main.querySelector("[role=alert]")?.remove();
    main.append(line);
    return null;
  }
}

async function act(name, body) {
  const found = await ask(name, body || {});
  if (found) draw(found);
}

const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
const button = (text, does, extra) => el("button", {type: "button", act: does, ...extra}, text);

function draw(found) {
  const before = state;
  state = found;
  clearInterval(ticking);
  const place = before && before.view === state.view && before.number === state.number ? document.activeElement.id : "";
  main.replaceChildren(...({menu, question, answered, score})[state.view]());
  if (state.note) main.prepend(el("p", {class: "source", role: "status"}, state.note));
  document.title = state.view === "menu" ? "Practice" : `${state.title}: Practice`;
  const focus = (place && document.getElementById(place)) || main.querySelector("[data-first]");
  focus?.focus();
  measuring();
}

function menu() {
  const timed = el("input", {type: "checkbox", id: "timed", checked: state.timed}), fresh = el("input", {type: "checkbox", id: "fresh", checked: state.fresh});
  const start = (form) => () => act("start", {form, timed: timed.checked, fresh: fresh.checked});
  const open = (form) => (state.open.includes(form) ? " (half done)" : "");
  const counts = state.counts;
  const tests = el("div", {class: "row"},
    button(`Mixed test, ${counts.mixed} questions${open("mixed")}`, start("mixed"), {id: "mixed"}),
    button(`Full-length test 1, ${counts.full} questions${open("full 1")}`, start("full 1"), {id: "full-1"}),
    button(`Full-length test 2${open("full 2")}`, start("full 2"), {id: "full-2"}),
    button(`${state.wrong} wrong before`, start("wrong"), {id: "wrong", disabled: !state.wrong}));
  const subjects = Object.entries(state.subjects).map(([name, title]) =>
    button(title + open(`short ${name}`), start(`short ${name}`), {id: `short-${name}`}));
  const labs = Object.entries(state.claims).map(([name, here]) =>
    button(here ? name : `${name}: not in this installation`, () => act("measure", {claim: name}), {id: `lab-${name}`, disabled: !here}));
  return [
    el("h2", {tabindex: -1, "data-first": true}, "What to practise?"),
    tests,
    el("div", {class: "row"}, el("label", {}, timed, "Timed"), el("label", {}, fresh, "Begin anew what is half done")),
    el("fieldset", {class: "choices"}, el("legend", {}, `Short set on one subject, ${counts.short} questions`), el("div", {class: "row"}, ...subjects)),
    el("fieldset", {class: "choices"}, el("legend", {}, "Labs: a claim, measured on this machine"), el("div", {class: "row"}, ...labs)),
    el("div", {id: "shown"}),
  ];
}

function heading() {
  const left = el("span", {id: "left", role: "timer"});
  return el("p", {class: "facts"}, el("span", {}, state.title), el("span", {}, `Question ${state.number + 1} of ${state.total}`), el("span", {}, state.subject), left);
}

function choices(extra) {
  const rows = state.options.map((option, place) => {
    const {classes, why, input} = extra(option, place);
    const box = el("input", {type: "radio", name: "option", id: `option-${place}`, value: place, ...input});
    return el("label", {class: `option ${classes}`}, box, el("b", {}, option.letter), el("span", {}, option.text, why));
  });
  return el("fieldset", {}, el("legend", {}, state.stem), ...rows);
}

function question() {
  const send = (place) => act("answer", {number: state.number, place});
  const form = el("form", {}, choices((option, place) => ({classes: "", why: null, input: {"data-first": place === 0}})),
    el("p", {class: "row"}, el("button", {class: "main", id: "send"}, "Answer"), button("Save and leave", () => act("leave"), {id: "leave"})));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const chosen = form.querySelector("input:checked");
    if (chosen) send(Number(chosen.value));
    else say("Choose one of the four options.");
  });
  if (state.left !== null) {
    const end = performance.now() + 1000 * state.left;
    ticking = setInterval(() => {
      const left = (end - performance.now()) / 1000;
      document.getElementById("left").textContent = `${clock(Math.max(0, left))} left`;
      if (left <= 0) { clearInterval(ticking); send(null); }
    }, 250);
  }
  return [heading(), form];
}

function answered() {
  const said = state.feedback, last = state.number + 1 === state.total || said.chosen === null;
  say(`${said.verdict} ${said.explanation}`);
  const shown = choices((option, place) => {
    const reason = said.reasons[place], chosen = option.letter === said.chosen;
    const classes = `${reason.right ? "right" : ""} ${chosen ? "chosen" : ""}`;
    return {classes, why: el("span", {class: "why"}, `${reason.right ? "Right" : "Wrong"}: ${reason.why}`), input: {checked: chosen, disabled: true}};
  });
  return [
    heading(),
    el("p", {class: `said ${said.right ? "passed" : "failed"}`, tabindex: -1, "data-first": true, id: "said"}, said.verdict),
    el("p", {}, said.explanation),
    shown,
    el("p", {class: "source"}, `Source: ${said.source}`),
    el("p", {class: "row"},
      button(last ? "Score" : "Next question", () => act("next"), {class: "main", id: "next"}),
      button(`Show me: ${said.claim}`, () => act("measure", {claim: said.claim}), {id: "show"}),
      button("Save and leave", () => act("leave"), {id: "leave"})),
    el("div", {id: "shown"}),
  ];
}

function score() {
  const rows = state.rows.map((row) => el("tr", {}, el("th", {scope: "row"}, row.title), el("td", {}, `${row.right} of ${row.asked}`)));
  const text = `Score: ${state.right} of ${state.asked} right in ${clock(state.seconds)}`;
  say(text);
  return [
    el("h2", {tabindex: -1, "data-first": true}, text),
    el("table", {}, el("thead", {}, el("tr", {}, el("th", {scope: "col"}, "Subject"), el("th", {scope: "col"}, "Right"))), el("tbody", {}, ...rows)),
    el("p", {class: "row"}, button("Back to the start", () => act("leave"), {class: "main", id: "leave"})),
  ];
}

// What a measurement found, beside the answer that it is about.
function measuring() {
  const place = document.getElementById("shown"), seen = state.measured;
  if (!place || !seen) { told = ""; return; }
  if (seen.running) {
    if (told !== `start ${seen.claim}`) say(`Measuring ${seen.claim}`);
    told = `start ${seen.claim}`;
    const stop = button("Stop", () => act("stop"), {id: "stop"});
    place.replaceChildren(el("div", {class: "shown row"}, el("span", {}, `Measuring ${seen.claim} on this machine: ${Math.floor(seen.seconds)} s`), stop));
    setTimeout(async () => {
      const found = await ask("state");
      if (!found || found.view !== state.view || found.number !== state.number) return;
      state.measured = found.measured;
      measuring();
    }, 700);
    return;
  }
  const verdict = seen.verdict;
  if (!verdict) {
    place.replaceChildren(el("div", {class: "shown"}, el("p", {}, seen.said)));
  } else {
    const right = state.feedback && state.feedback.reasons.find((reason) => reason.right);
    const rows = [["Answer", right ? `${right.letter}: ${right.text}` : verdict.statement], ["Measured here", verdict.measured], ["Expected", verdict.expected], ["Why", verdict.why]];
    const head = `${seen.claim} ${verdict.holds ? "holds" : "does not hold"} here, in ${verdict.seconds.toFixed(1)} s`;
    place.replaceChildren(el("div", {class: "shown"}, el("p", {class: verdict.holds ? "passed" : "failed", id: "verdict"}, head),
      el("dl", {}, ...rows.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {class: name === "Measured here" ? "figure" : ""}, text)]))));
  }
  if (told !== `end ${seen.claim}`) say(verdict ? `${seen.claim} ${verdict.holds ? "holds" : "does not hold"} here: ${verdict.measured}` : seen.said);
  told = `end ${seen.claim}`;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || !state) return;
  const key = event.key.toLowerCase(), place = "abcd".indexOf(key);
  if (state.view === "question" && key.length === 1 && place >= 0) act("answer", {number: state.number, place});
  else if (state.view === "answered" && key === "s") document.getElementById("show").click();
  else if (state.view === "answered" && key === "enter" && document.activeElement.tagName !== "BUTTON") document.getElementById("next").click();
  else if (state.view !== "menu" && key === "q") document.getElementById("leave").click();
  else return;
  event.preventDefault();
});

ask("state").then((found) => { if (found) draw(found); });


"use strict";
(() => {
  const token = location.hash.slice(1);
  const at = (id) => document.getElementById(id);
  const TOLD = {
    not_valid: "This link is not valid. It may have expired, or the question may be gone. Ask for a new link.",
    already: "The question is closed, so your answer was not taken.",
    not_seen: "The question is not the one that you saw. Load this page again.",
    bad_request: "The answer could not be read. Load this page again.",
    too_large: "The answer is too large.",
    too_many: "There were too many requests. Try again in a minute.",
    unavailable: "The answer could not be stored now. Try again in a moment.",
  };
  const STATES = {
    answered: "This question has been answered.",
    expired: "This question has expired.",
    withdrawn: "This question was withdrawn.",
  };
  let digest = "";

  async function send(body) {
    try {
      const response = await fetch(location.pathname, {
        method: "POST", body, headers: { "content-type": "application/json" },
        credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store", redirect: "error",
      });
      return [response.status, await response.json()];
    } catch {
      return [0, { error: "unavailable" }];
    }
  }

  /* Texts of a schema come as they are: what turns or hides text is written by its number. The characters are
     those of shown_text.py. */
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u27e8\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\u{16fe4}\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|(?<![^\u0000-\u0022\u0024-\u0029\u002b-\u002f\u003a-\u007f\s\u200c\u200d])[\ufe0e\ufe0f]|(?<![^\u0000-\u007f\s\u200c\u200d])[\u200c\u200d]/gu;
  const reveal = (text) => String(text).replace(HIDDEN, (sign) =>
    `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

  const make = (tag, text, facts = {}) => {
    const made = document.createElement(tag);
    if (text) made.textContent = reveal(text);
    for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
    return made;
  };

  function close(text) {
    at("content").hidden = true;
    at("status").hidden = false;
    at("status").textContent = text;
  }

  /* Each control returns the JSON text of its value, undefined if it is left out, or throws what is wrong. */
  let count = 0;
  function control(schema, name, isNeeded) {
    const box = make("div");
    const id = `field-${(count += 1)}`;
    const told = schema.title || name || "Your answer";
    const add = (field) => {
      const label = make("label", told, { for: id, dir: "auto" });
      if (!isNeeded) label.append(make("span", " (optional)"));
      box.append(label);
      if (schema.description) {
        box.append(make("p", schema.description, { class: "hint", id: `${id}-hint`, dir: "auto" }));
        field.setAttribute("aria-describedby", `${id}-hint`);
      }
      field.id = id;
      if (isNeeded) field.setAttribute("aria-required", "true");
      box.append(field);
      return field;
    };
    const wrong = (field, text) => {
      field.setAttribute("aria-invalid", "true");
      field.focus();
      throw new Error(`${reveal(told)}: ${text}`);
    };
    const read = (field, take) => () => {
      field.removeAttribute("aria-invalid");
      if (field.value === "" && !isNeeded) return undefined;
      return take(field.value);
    };

    if ("const" in schema) {
      add(make("output", typeof schema.const === "string" ? schema.const : JSON.stringify(schema.const)));
      return [box, () => JSON.stringify(schema.const)];
    }
    if (schema.enum || schema.type === "boolean") {
      const values = schema.enum || [true, false];
      const plain = values.map((each) =>
        each === true ? "Yes" : each === false ? "No" : typeof each === "string" ? each : JSON.stringify(each));
      const texts = new Set(plain).size < plain.length ? values.map((each) => JSON.stringify(each)) : plain;
      const field = add(make("select"));
      field.append(make("option", "Choose…", { value: "" }));
      texts.forEach((text, index) => field.append(make("option", text || "(empty)", { value: String(index) })));
      return [box, read(field, (text) =>
        text === "" ? wrong(field, "choose one.") : JSON.stringify(values[Number(text)]))];
    }
    if (schema.type === "integer" || schema.type === "number") {
      const isWhole = schema.type === "integer";
      const field = add(make("input", "", { type: "text", inputmode: isWhole ? "numeric" : "decimal", autocomplete: "off" }));
      const form = isWhole ? /^-?(0|[1-9][0-9]*)$/ : /^-?(0|[1-9][0-9]*)(\.[0-9]+)?$/;
      return [box, read(field, (text) =>
        form.test(text.trim()) ? text.trim() : wrong(field, isWhole ? "enter a whole number." : "enter a number."))];
    }
    if (schema.type === "string") {
      const isLong = !(schema.maxLength <= 200);
      const field = add(isLong ? make("textarea", "", { rows: "3" }) : make("input", "", { type: "text", autocomplete: "off" }));
      return [box, read(field, (text) => {
        const size = [...text].length;
        if (size < (schema.minLength || 0)) wrong(field, `enter at least ${schema.minLength} characters.`);
        if (size > schema.maxLength) wrong(field, `enter at most ${schema.maxLength} characters.`);
        return JSON.stringify(text);
      })];
    }
    if (schema.type === "null") return [box, () => "null"];
    if (schema.type === "object" && schema.properties) {
      const group = make("fieldset");
      group.append(make("legend", told, { dir: "auto" }));
      if (schema.description) group.append(make("p", schema.description, { class: "hint", dir: "auto" }));
      const needed = new Set(schema.required || []);
      const parts = Object.entries(schema.properties).map(([key, part]) => {
        const [inner, take] = control(part, key, isNeeded && needed.has(key));
        group.append(inner);
        return [key, take];
      });
      box.append(group);
      return [box, () => {
        const taken = parts.map(([key, take]) => [key, take()]).filter(([, text]) => text !== undefined);
        if (!isNeeded && taken.length === 0) return undefined;
        return `{${taken.map(([key, text]) => `${JSON.stringify(key)}:${text}`).join(",")}}`;
      }];
    }
    if (schema.type === "array" && schema.items && schema.items.type === "string" && !schema.items.enum) {
      const field = add(make("textarea", "", { rows: "4", placeholder: "One per line" }));
      return [box, () => {
        const lines = field.value.split("\n").filter((line) => line !== "");
        if (lines.length === 0 && !isNeeded) return undefined;
        return JSON.stringify(lines);
      }];
    }
    const field = add(make("textarea", "", { rows: "4", spellcheck: "false", placeholder: "JSON" }));
    return [box, read(field, (text) => {
      try {
        JSON.parse(text);
      } catch {
        wrong(field, "enter JSON.");
      }
      return text;
    })];
  }

  function button(text, kind, take) {
    const made = make("button", text, { type: "button", "data-kind": kind });
    made.addEventListener("click", () => answer(take));
    at("buttons").append(made);
  }

  async function answer(take) {
    const error = at("error");
    error.textContent = "";
    let value;
    try {
      value = take();
    } catch (wrong) {
      error.textContent = wrong.message;
      return;
    }
    const buttons = [...at("buttons").children];
    buttons.forEach((each) => { each.disabled = true; });
    const facts = { token, do: "answer", saw: digest, note: at("note").value };
    const [status, said] = await send(`${JSON.stringify(facts).slice(0, -1)},"value":${value}}`);
    buttons.forEach((each) => { each.disabled = false; });
    if (status === 200) {
      const left = said.need - said.votes;
      close(said.state === "pending" && left > 0
        ? `Your answer was taken. ${left} more ${left === 1 ? "person has" : "people have"} to agree.`
        : "Your answer was taken. You can close this page.");
    } else if (status === 422) {
      error.textContent = said.message;
    } else if (status === 503 || status === 0 || status === 408 || status === 413 || status === 429) {
      error.textContent = TOLD[said.error] || TOLD.unavailable;
    } else {
      close(TOLD[said.error] || TOLD.bad_request);
    }
  }

  function show(said) {
    digest = said.digest;
    at("question").textContent = said.question;
    const facts = [`For ${said.to}`];
    if (said.asked_by) facts.push(`asked by ${said.asked_by}`);
    if (said.expires_at) facts.push(`open until ${new Date(said.expires_at).toLocaleString()}`);
    if (said.need > 1) facts.push(`${said.votes} of ${said.need} have agreed`);
    if (said.has_answered) facts.push("you have agreed");
    /* Each fact is isolated on a line of its own, so that no name looks like another fact. The server has
       revealed hidden characters of names. */
    at("facts").replaceChildren(...facts.map((fact) => {
      const line = make("bdi");
      line.textContent = fact;
      return line;
    }));
    if (said.subject !== null) {
      at("subject").textContent = said.subject;
      at("subject-part").hidden = false;
    }
    if (said.schema === null) {
      button("Yes", "yes", () => "true");
      button("No", "no", () => "false");
    } else {
      const [box, take] = control(said.schema, "", true);
      at("fields").append(box);
      button("Send", "send", take);
    }
    at("form").addEventListener("submit", (event) => event.preventDefault());
    at("status").hidden = true;
    at("content").hidden = false;
  }

  async function start() {
    if (token === "") return close("This address is not complete. Use the whole link that you were sent.");
    const [status, said] = await send(JSON.stringify({ token, do: "read" }));
    if (status !== 200) return close(TOLD[said.error] || TOLD.unavailable);
    return said.state === "pending" ? show(said) : close(STATES[said.state]);
  }

  addEventListener("hashchange", () => location.reload());
  start();
})();

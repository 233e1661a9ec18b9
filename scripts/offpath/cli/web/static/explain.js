// A request's or a training job's explanation, in a dialog.

import { clean, element, seconds, sentence } from "/static/words.js";

export class Explain {
  constructor(dialog, title, body, close) {
    this.dialog = dialog;
    this.title = title;
    this.body = body;
    close.addEventListener("click", () => dialog.close());
  }

  async request(identity) {
    await this.#show(`Request ${clean(identity)}`, `/api/explain/${identity.split("/").map(encodeURIComponent).join("/")}`, (found) => this.#request(found));
  }

  async job(name) {
    await this.#show(`Job ${clean(name)}`, `/api/job/${encodeURIComponent(name)}`, (found) => this.#job(found));
  }

  async #show(title, address, draw) {
    this.title.textContent = title;
    this.body.replaceChildren(element("p", "reading"));
    if (!this.dialog.open) this.dialog.showModal();
    try {
      const answer = await fetch(address, { cache: "no-store" });
      const found = await answer.json();
      if (answer.ok) this.body.replaceChildren(...draw(found));
      else this.body.replaceChildren(element("p", sentence(found.detail)));
    } catch {
      this.body.replaceChildren(element("p", "no answer from the page's server"));
    }
  }

  #request(found) {
    const { job } = found;
    const reason = job.reason && job.reason !== "none" ? ` (${clean(job.reason)})` : "";
    const parts = [
      element("p", `${clean(job.state).toUpperCase()}${reason}: request ${job.session}/${job.request_id} of ${clean(job.tenant)}, job ${job.job}`),
      element("p", `kernel ${clean(job.kernel)}, demand ${job.demand} %, priority ${job.priority}, ${job.payload_bytes} bytes, ${job.is_ended ? "ended" : "accepted"} ${seconds(job.age_ms)} ago`),
      element("p", sentence(found.where)),
    ];
    if (found.ahead) parts.push(element("p", `${found.ahead} requests of its tenant are before it`));
    if (found.estimate_ms !== null) parts.push(element("p", `estimated to end in ${seconds(found.estimate_ms)}`));
    if (found.stages.length) parts.push(element("h3", "Stages"), this.#stages(found.stages));
    if (found.holds.length) parts.push(element("h3", "Reasons"));
    for (const hold of found.holds) parts.push(...this.#hold(hold));
    if (!found.holds.length && !job.is_ended) parts.push(element("p", "nothing blocks it"));
    return parts;
  }

  #stages(stages) {
    const grid = element("div", "", { class: "stages" });
    const most = Math.max(...stages.map(([, ms]) => ms), 1e-9);
    for (const [name, ms] of stages) {
      const bar = element("div", "", { class: "bar" });
      bar.style.setProperty("width", `${(100 * ms) / most}%`);
      grid.append(element("span", name), element("b", `${ms.toFixed(3)} ms`), bar);
    }
    return grid;
  }

  #hold(hold) {
    const parts = [element("p", `${clean(hold.cause)}: ${sentence(hold.text)}`)];
    const list = element("ul");
    for (const each of hold.unblocked_by.slice(0, 32)) list.append(element("li", `unblocked when: ${sentence(each)}`));
    for (const each of hold.holders.slice(0, 32)) {
      list.append(element("li", `held by lease ${each.lease} of ${clean(each.tenant)}: ${clean(each.profile)} at ${each.start} on ${clean(each.gpu)}, ${clean(each.state)}, ${each.jobs} requests`));
    }
    if (list.childElementCount) parts.push(list);
    return parts;
  }

  #job(found) {
    const list = element("ul");
    for (const reason of found.reasons.slice(0, 64)) list.append(element("li", sentence(reason)));
    return [element("p", `${clean(found.job.state)}: ${sentence(found.where)}`), list];
  }
}

// The door: whether the daemon answers and knows this browser; then the workbench.

import { status } from "./api.js";
import { trouble } from "./frame.js";
import { currentLanguage, t } from "./i18n.js";
import { offlinePage, pairingBusy, pairingPage, takeCode, usePairingCode } from "./pairing.js";
import { Backoff } from "./stream.js";
import { Workbench } from "./workbench.js";

class Door {
  constructor(root) {
    this.root = root;
    this.bench = new Workbench(root, { unpaired: () => this.showPairing(null) });
  }

  /** Use the code if the address held one, then go in as far as the daemon lets this browser. */
  async open(code) {
    document.documentElement.lang = currentLanguage();
    let failed = null;
    if (code) {
      this.gate(pairingBusy());
      failed = await usePairingCode(code).then(
        () => null,
        (error) => (error.status === 403 ? t("pair.failed") : error.message),
      );
    }
    await this.enter(failed);
  }

  async enter(failed) {
    const waiting = new Backoff();
    const never = new AbortController().signal;
    for (let shown = false; ; shown = true) {
      try {
        await this.bench.load();
        return this.bench.show();
      } catch (error) {
        if (error.status === 401) return this.showPairing(failed);
        if (!error.passing) return this.gate(trouble(t("offline.page"), error.message, () => location.reload()));
        if (!shown) this.gate(offlinePage());
        await waiting.wait(never);
      }
    }
  }

  showPairing(failed) {
    this.bench.close();
    this.gate(pairingPage({ failed, onPaired: () => location.reload() }));
    // The link may be opened in this very tab: that changes the address only.
    addEventListener("hashchange", () => location.hash.includes("pair=") && location.reload());
    // Another tab may be paired meanwhile: its cookie is this tab's too.
    addEventListener("focus", () =>
      status().then(
        () => location.reload(),
        () => {},
      ),
    );
  }

  gate(page) {
    this.root.className = "";
    this.root.replaceChildren(page);
    page.querySelector("input")?.focus();
  }
}

new Door(document.getElementById("app")).open(takeCode());

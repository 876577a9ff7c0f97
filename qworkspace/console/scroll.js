// Keeping the newest text in view for whoever is looking at it, and leaving everybody else where they are.

const NEAR_PX = 80; // so close to the end counts as being there

/** `onAtEnd(boolean)` when the person arrives at the end or leaves it. */
export class Scroll {
  constructor(log, onAtEnd) {
    this.log = log;
    this.onAtEnd = onAtEnd;
    this.atEnd = true;
    this.top = 0;
    log.addEventListener("scroll", () => this.moved(), { passive: true });
  }

  /** Something grew. */
  stick() {
    if (this.atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  toEnd() {
    this.set(true);
    this.stick();
  }

  moved() {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    // Text may have grown since this was scheduled: only who moves up has left the end.
    if (scrollHeight - scrollTop - clientHeight < NEAR_PX) this.set(true);
    else if (scrollTop < this.top) this.set(false);
    this.top = scrollTop;
  }

  set(atEnd) {
    if (atEnd !== this.atEnd) this.onAtEnd(atEnd);
    this.atEnd = atEnd;
  }
}

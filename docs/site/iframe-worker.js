// Pages that are opened as files get no web workers. There, a worker's script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      // An empty frame is loaded at once; the script is when its document has been written and closed.
      this.ready = new Promise(done => frame.addEventListener("load", () => done(frame.contentWindow)));
      const inside = frame.contentWindow;
      inside.document.open();
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      inside.document.write(`<!doctype html><title>worker</title><script src="${new URL(url, location)}"><\/script>`);
      inside.document.close();
    }

    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new inside.MessageEvent("message", {data})));
    }
  };
}

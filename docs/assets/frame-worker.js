// Web workers for a site that a browser opens from files, where it starts none. The theme searches in a worker.
// FrameWorker runs the script of the worker in a hidden frame of the page. The frame gets the two functions that a worker
// has and a window has not; messages are copied, as between a page and a worker.
"use strict";
class FrameWorker extends EventTarget {
  onmessage = null;
  onerror = null;

  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.frame.srcdoc = "<!doctype html><title>worker</title>";
    this.started = new Promise((resolve) => {
      this.frame.onload = () => resolve(this.start(String(url)));
    });
    document.body.append(this.frame);
  }

  async start(url) {
    const scope = this.frame.contentWindow;
    scope.onerror = (text) => this.tell(new ErrorEvent("error", { message: String(text) }), this.onerror);
    scope.postMessage = (data) => this.tell(new MessageEvent("message", { data: structuredClone(data) }), this.onmessage);
    scope.importScripts = async (...urls) => {
      for (const each of urls) await this.load(each);
    };
    await this.load(url);
  }

  load(url) {
    const script = this.frame.contentDocument.createElement("script");
    script.src = url;
    return new Promise((resolve, reject) => {
      script.onload = resolve;
      script.onerror = () => {
        this.tell(new ErrorEvent("error", { message: `${url} cannot be loaded` }), this.onerror);
        reject(new Error(url));
      };
      this.frame.contentDocument.head.append(script);
    });
  }

  tell(event, handler) {
    this.dispatchEvent(event);
    handler?.call(this, event);
  }

  postMessage(data) {
    const copied = structuredClone(data);
    const send = () => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: copied }));
    this.started.then(send, () => undefined); // `load` has told of a script that is not there
  }

  terminate() {
    this.frame.remove();
  }
}
if (location.protocol === "file:") window.Worker = FrameWorker;

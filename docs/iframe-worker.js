// Lets the search work on pages that are opened from disk: browsers start no worker there, so it runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = url
      const loaded = new Promise(done => script.addEventListener("load", done))
      this.postMessage = async data => {
        await loaded
        inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      }
      inside.document.body.append(script)
    }
  }
}

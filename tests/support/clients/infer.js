// node infer.js ADDRESS TOKEN BODY: bodies of Node's http.request and fetch, whole and as streams.
const fs = require("fs");
const http = require("http");

const [address, token, file] = process.argv.slice(2);
const url = `http://${address}/v2/models/simple/infer`;
const headers = { authorization: `Bearer ${token}` };
const body = fs.readFileSync(file);

function requested(send) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method: "POST", headers }, (answer) => {
      let text = "";
      answer.on("data", (part) => { text += part; });
      answer.on("end", () => resolve(`${answer.statusCode} ${text}`));
    });
    request.on("error", reject);
    send(request);
  });
}

async function fetched(options) {
  const answer = await fetch(url, { method: "POST", headers, ...options });
  return `${answer.status} ${await answer.text()}`;
}

(async () => {
  console.log(await requested((request) => request.end(body)));
  console.log(await requested((request) => {
    request.write(body.subarray(0, 20));
    request.end(body.subarray(20));
  }));
  console.log(await fetched({ body }));
  console.log(await fetched({ body: fs.createReadStream(file), duplex: "half" }));
})().catch((fault) => {
  console.error(fault);
  process.exit(1);
});

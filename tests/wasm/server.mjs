// A file server for tests in a browser: with the headers that threads need, on 127.0.0.1 only.
import fs from "node:fs";
import http from "node:http";
import path from "node:path";

const types = { ".html": "text/html", ".mjs": "text/javascript", ".json": "application/json", ".wasm": "application/wasm" };

/**
 * @param {Record<string, string>} folders by the first part of a URL's path
 * @param {(message: object) => void} report takes the JSON that is posted to /report, in order
 * @returns {Promise<{url: string, close: () => void}>}
 */
export function serve(folders, report) {
  const server = http.createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    if (request.method === "POST" && url.pathname === "/report") {
      let text = "";
      for await (const piece of request) text += piece;
      report(JSON.parse(text));
      response.writeHead(204).end();
      return;
    }
    const [, name, ...rest] = decodeURIComponent(url.pathname).split("/");
    const root = folders[name];
    const file = root === undefined ? undefined : path.join(root, ...rest);
    const inside = file !== undefined && file.startsWith(root + path.sep);
    if (!inside || !fs.existsSync(file) || !fs.statSync(file).isFile()) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, {
      "Content-Type": types[path.extname(file)] ?? "application/octet-stream",
      "Content-Length": fs.statSync(file).size,
      "Cross-Origin-Opener-Policy": "same-origin",
      "Cross-Origin-Embedder-Policy": "require-corp",
    });
    fs.createReadStream(file).pipe(response);
  });
  return new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => {
      resolve({
        url: `http://127.0.0.1:${server.address().port}`,
        close: () => {
          server.close();
          server.closeAllConnections();
        },
      });
    });
  });
}

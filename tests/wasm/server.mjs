// A file server for tests in a browser: with the headers that threads need, on 127.0.0.1 only.
import fs from "node:fs";
import http from "node:http";
import path from "node:path";

const types = { ".html": "text/html", ".mjs": "text/javascript", ".json": "application/json", ".wasm": "application/wasm" };

/**
 * @param {Record<string, string>} folders by the first part of a URL's path
 * @returns {Promise<{url: string, close: () => void}>}
 */
export function serve(folders) {
  const server = http.createServer((request, response) => {
    const [, name, ...rest] = decodeURIComponent(new URL(request.url, "http://localhost").pathname).split("/");
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
      resolve({ url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() });
    });
  });
}

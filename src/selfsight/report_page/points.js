// Okabe and Ito's colors, which color-blind readers can distinguish; then other shapes.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const SHAPES = ["circle", "square", "triangle", "diamond", "star"];
const OUTLINE = "rgba(20, 24, 30, 0.55)";
const OUTLINED_FROM = 2.5; // radius in pixels; smaller dots would be all outline
const ROOM = 1.45; // radii from the middle of a dot to the side of its square, outline included

const VERTEX_SHADER = `#version 300 es
uniform vec2 scale, shift;
uniform float size;
uniform bool faint;
layout(location = 0) in vec2 place;
layout(location = 1) in vec4 ink;
layout(location = 2) in float shape;
out vec4 color;
flat out int kind;
void main() {
  color = ink;
  kind = int(shape);
  gl_PointSize = size;
  gl_Position = ink.a > 0.0 && (ink.a < 0.5) == faint ? vec4(place * scale + shift, 0, 1) : vec4(2, 2, 2, 1);
}`;

// Distance to the edge of a shape of radius 1, negative inside; y points down, as in tracePath.
const FRAGMENT_SHADER = `#version 300 es
precision highp float;
uniform float size, outline;
in vec4 color;
flat in int kind;
out vec4 pixel;
float edge(vec2 p) {
  vec2 q = abs(p);
  if (kind == 1) return max(q.x, q.y) - 0.9;
  if (kind == 2) return max(p.y, 0.866 * q.x - 0.5 * p.y) - 0.625;
  if (kind == 3) return 0.7071 * (q.x + q.y - 1.25);
  if (kind == 4) return dot(vec2(max(q.x, q.y) - 1.25, min(q.x, q.y)), vec2(0.3229, 0.9464));
  return length(p) - 1.0;
}
void main() {
  float one = ${2 * ROOM} / size; // a pixel
  float d = edge((2.0 * gl_PointCoord - 1.0) * ${ROOM});
  float cover = 1.0 - smoothstep(-0.5 * one, 0.5 * one, d - outline * one);
  float rim = outline * smoothstep(-one, 0.0, d);
  vec3 paint = mix(color.rgb, vec3(0.08, 0.09, 0.12), 0.55 * rim);
  pixel = vec4(paint, 1) * color.a * cover;
}`;

function tracePath(context, shape, x, y, r) {
  context.beginPath();
  if (shape === "circle") context.arc(x, y, r, 0, 2 * Math.PI);
  else if (shape === "square") context.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
  else {
    const corners = { triangle: 3, diamond: 4, star: 8 }[shape];
    for (let i = 0; i < corners; i++) {
      const radius = shape === "star" && i % 2 ? r * 0.45 : r * 1.25;
      const angle = -Math.PI / 2 + (2 * Math.PI * i) / corners;
      context.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
    }
    context.closePath();
  }
}

/**
 * A layer of dots, drawn by WebGL, or on a plain canvas where there is none.
 *
 * `paint(colors, shapes)` sets four bytes and a shape for each dot; those without alpha are hidden,
 * and those with less than half lie under the others.
 * `draw(view)` draws them: a point (x, y) lies at (view.left + x scale, view.top - y scale).
 */
function createDots(x, y) {
  const state = { colors: new Uint8Array(4 * x.length), shapes: new Uint8Array(x.length), view: null };
  const layer = { canvas: null, paint, draw, clear: () => draw(null), kind: "" };
  let renderer = null;
  function paint(colors, shapes) {
    Object.assign(state, { colors, shapes });
    renderer.paint(colors, shapes);
  }
  function draw(view) {
    state.view = view;
    if (view) {
      const sharp = devicePixelRatio || 1;
      layer.canvas.width = view.width * sharp;
      layer.canvas.height = view.height * sharp;
    }
    layer.canvas.hidden = !view;
    if (view) renderer.draw(view, devicePixelRatio || 1);
  }
  function use(build, kind) {
    const canvas = html("canvas", { class: "dots", "aria-hidden": "true" });
    renderer = build(canvas, x, y);
    if (!renderer) return false;
    layer.canvas?.replaceWith(canvas);
    Object.assign(layer, { canvas, kind });
    canvas.addEventListener("webglcontextlost", () => {
      use(drawWithoutWebGl, "canvas");
      renderer.paint(state.colors, state.shapes);
      draw(state.view);
    });
    return true;
  }
  if (!use(drawWithWebGl, "webgl")) use(drawWithoutWebGl, "canvas");
  return layer;
}

function drawWithWebGl(canvas, x, y) {
  const gl = canvas.getContext("webgl2", { antialias: false, preserveDrawingBuffer: true });
  if (!gl) return null;
  const program = gl.createProgram();
  for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX_SHADER], [gl.FRAGMENT_SHADER, FRAGMENT_SHADER]]) {
    const shader = gl.createShader(type);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return null;
  gl.useProgram(program);
  const uniform = Object.fromEntries(["scale", "shift", "size", "outline", "faint"].map((name) => [name, gl.getUniformLocation(program, name)]));
  const [places, inks, kinds] = [gl.createBuffer(), gl.createBuffer(), gl.createBuffer()];
  const upload = (location, buffer, data, width, type, normalized = false) => {
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(location);
    gl.vertexAttribPointer(location, width, type, normalized, 0, 0);
  };
  let passes = [0]; // with 1 first, if there are faint dots to lie under the others
  const pairs = new Float32Array(2 * x.length);
  for (let i = 0; i < x.length; i++) [pairs[2 * i], pairs[2 * i + 1]] = [x[i], y[i]];
  upload(0, places, pairs, 2, gl.FLOAT);
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  return {
    paint(colors, shapes) {
      passes = colors.some((value, i) => i % 4 === 3 && value && value < 128) ? [1, 0] : [0];
      upload(1, inks, colors, 4, gl.UNSIGNED_BYTE, true);
      upload(2, kinds, shapes, 1, gl.UNSIGNED_BYTE);
    },
    draw({ left, top, scale, width, height, radius }, sharp) {
      gl.viewport(0, 0, canvas.width, canvas.height);
      gl.clearColor(0, 0, 0, 0);
      gl.clear(gl.COLOR_BUFFER_BIT);
      gl.uniform2f(uniform.scale, (2 * scale) / width, (2 * scale) / height);
      gl.uniform2f(uniform.shift, (2 * left) / width - 1, 1 - (2 * top) / height);
      gl.uniform1f(uniform.size, 2 * ROOM * radius * sharp);
      gl.uniform1f(uniform.outline, radius < OUTLINED_FROM ? 0 : 1);
      for (const faint of passes) {
        gl.uniform1i(uniform.faint, faint);
        gl.drawArrays(gl.POINTS, 0, x.length);
      }
    },
  };
}

function drawWithoutWebGl(canvas, x, y) {
  const context = canvas.getContext("2d");
  let [inks, kinds] = [new Uint8Array(0), new Uint8Array(0)];
  return {
    paint(colors, shapes) {
      [inks, kinds] = [colors, shapes];
    },
    draw({ left, top, scale, width, height, radius }, sharp) {
      context.setTransform(sharp, 0, 0, sharp, 0, 0);
      context.clearRect(0, 0, width, height);
      context.lineWidth = 0.75;
      context.strokeStyle = OUTLINE;
      for (const faint of [true, false]) {
        for (let i = 0; i < x.length; i++) if (inks[4 * i + 3] && inks[4 * i + 3] < 128 === faint) dot(i);
      }
      function dot(i) {
        const [px, py, at] = [left + x[i] * scale, top - y[i] * scale, 4 * i];
        if (px < -radius || py < -radius || px > width + radius || py > height + radius) return;
        context.globalAlpha = inks[at + 3] / 255;
        context.fillStyle = `rgb(${inks[at]},${inks[at + 1]},${inks[at + 2]})`;
        if (radius < OUTLINED_FROM) return context.fillRect(px - radius, py - radius, 2 * radius, 2 * radius);
        tracePath(context, SHAPES[kinds[i]], px, py, radius);
        context.fill();
        context.stroke();
      }
    },
  };
}
